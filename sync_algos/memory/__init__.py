"""Replicas, peers and a center in one process, for tests and the lab."""
