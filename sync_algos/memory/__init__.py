"""Replicas, peers and a center in the memory of one process, for tests and the virtual lab."""
