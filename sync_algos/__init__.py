"""The synchronization algorithms, one file each, and `base`, which says what one is; folders help them."""
