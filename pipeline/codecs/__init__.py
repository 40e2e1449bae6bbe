"""How float32 values are encoded for sending, and error feedback."""
