"""Sync nodes: hold the center."""
