"""The job file: its schema, and how it is read."""
