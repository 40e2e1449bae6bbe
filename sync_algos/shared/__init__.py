"""What several algorithms share: a pull to a target, a group's mean, an outer model, a momentum, deltas."""
