"""The processes of a job, a folder per role; nodes interact only by messages."""
