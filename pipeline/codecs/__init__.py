"""How float32 values travel: one file a codec, and an explicit dict of their names in `registry`."""
