"""What models are built of: dense layers, attention, sequences, counts of items."""
