"""`shadowsync run`: starts, watches and ends the processes of a job."""
