"""What a job reads: the plan of its input, and its rows, prepared or not."""
