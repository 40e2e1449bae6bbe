"""Synchronization of a replica, in the background or at a fixed rate."""
