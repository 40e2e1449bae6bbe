"""What every algorithm is told or asked: its options, its groups, which model it produces; no torch."""
