"""The all-reduce protocol between trainers."""
