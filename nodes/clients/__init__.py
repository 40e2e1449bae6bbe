"""Clients of a running job: they ask for its status, and change it."""
