"""Which rows a span has, in which order, cut into batches."""
