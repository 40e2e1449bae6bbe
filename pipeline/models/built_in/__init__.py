"""The models that a job may name."""
