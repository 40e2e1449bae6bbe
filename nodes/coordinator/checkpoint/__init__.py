"""Checkpoints of a running job: when, how, and how a resumed job takes one over."""
