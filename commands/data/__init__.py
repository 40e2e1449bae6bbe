"""Commands that make or prepare input."""
