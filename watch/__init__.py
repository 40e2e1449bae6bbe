"""What shows a run while it goes on: a table, a page, event files, metrics. Knows no node."""
