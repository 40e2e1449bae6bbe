"""The processes of a job, a folder for each role; nodes meet only through messages."""
