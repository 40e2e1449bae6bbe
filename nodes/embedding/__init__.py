"""Embedding nodes: serve lookups and pushes of a shard."""
