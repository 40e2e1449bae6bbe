"""Validation of checkpoints: scored by a process beside the job."""
