"""Status and profile of a job."""
