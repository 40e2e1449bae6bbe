"""What several algorithms share: a pull toward a target, a mean of a group, an outer model."""
