"""The input of a job: plan and rows, prepared or not."""
