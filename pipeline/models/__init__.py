"""Dense models, the flat replica of their parameters, and its optimizers."""
