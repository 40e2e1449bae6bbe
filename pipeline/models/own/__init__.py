"""What a user's own model may have beside `forward`: a loss, metrics."""
