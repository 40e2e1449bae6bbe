"""The hub of attached loops: members, the book of steps, shared samples."""
