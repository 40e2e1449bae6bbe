"""Commands about a job that runs."""
