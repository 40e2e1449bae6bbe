"""Commands of the laboratory: what a job would do elsewhere, or does under faults."""
