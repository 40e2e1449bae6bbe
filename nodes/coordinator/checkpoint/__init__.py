"""Checkpoints of a running job, and resuming from them."""
