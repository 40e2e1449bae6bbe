"""The roles, one a file; nodes meet only through messages."""
