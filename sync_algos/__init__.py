"""The synchronization algorithms: one file each, and an explicit dict of their names in `registry`."""
