"""Loading and validation of job files, and their reference page."""
