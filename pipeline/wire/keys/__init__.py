"""Access: the job's key, CURVE with it, and the HTTP servers' token."""
