"""`shadowsync plan`: machines for a job, computed from what a profile measured."""
