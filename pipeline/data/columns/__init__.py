"""Columns of a chunk: values of Arrow as numbers, times and hashes."""
