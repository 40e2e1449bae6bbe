"""A Hogwild worker: its step, its clients, its process."""
