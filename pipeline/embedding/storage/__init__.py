"""Rows of a shard: memory, precision, optimizers, files."""
