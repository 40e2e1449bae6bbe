"""The lab: one job under several algorithms, side by side."""
