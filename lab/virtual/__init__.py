"""A job of emulated machines with real arithmetic, on a virtual clock."""
