"""Embedding tables for loops of users: `shadowsync.Embeddings`."""
