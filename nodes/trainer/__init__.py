"""The trainer role: worker pool, acknowledgements, checkpoint."""
