"""Figures of a model's quality, and sums over a growing axis."""
