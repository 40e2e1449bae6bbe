"""Views of a running job: a table, a page, event files, metrics."""
