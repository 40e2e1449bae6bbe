"""The lab: jobs that are compared, tuned, planned, simulated and disturbed."""
