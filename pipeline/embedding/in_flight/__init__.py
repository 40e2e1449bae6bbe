"""Pushes and lookups of a trainer that are on their way to embedding nodes."""
