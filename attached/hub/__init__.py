"""The hub of attached loops: who is there, what they did, and the samples that they share."""
