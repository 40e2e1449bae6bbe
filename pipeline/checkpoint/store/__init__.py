"""Stores of checkpoints: a folder, or a bucket of objects."""
