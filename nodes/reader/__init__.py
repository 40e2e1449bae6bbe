"""Reader nodes: parse the input and deliver batches."""
