"""Dense models, the flat replica they live in, and its optimizers."""
