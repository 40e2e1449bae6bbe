"""Serving of a saved model over HTTP: scores of raw rows."""
