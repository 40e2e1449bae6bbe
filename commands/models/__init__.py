"""Commands about a trained model."""
