"""The encoding of float32 values for sending, and error feedback."""
