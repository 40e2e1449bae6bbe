"""A job on emulated machines: real arithmetic in one process, on a virtual clock."""
