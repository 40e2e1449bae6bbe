"""Rows that lie in a file on the node's disk, those in use in memory."""
