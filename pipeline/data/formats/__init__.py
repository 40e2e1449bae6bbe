"""Formats of files, and the rows in them."""
