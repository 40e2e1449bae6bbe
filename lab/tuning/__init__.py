"""`shadowsync tune`: a study of a job's settings, whose bad trials are stopped early."""
