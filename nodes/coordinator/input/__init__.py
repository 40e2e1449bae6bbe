"""What the coordinator reads of the job's input: plans, label rates, files that come."""
