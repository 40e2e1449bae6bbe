"""The schema of a job file, section by section."""
