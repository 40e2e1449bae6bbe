"""Who may connect: the job's key, CURVE with it, and the token of HTTP servers."""
