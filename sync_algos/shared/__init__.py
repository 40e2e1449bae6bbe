"""What several algorithms share: a pull toward a target, the mean of a group, a momentum, deltas."""
