"""What a job reads: its input's plan, its rows, prepared or not."""
