"""Requests and replies over one connection, repeated until they are answered."""
