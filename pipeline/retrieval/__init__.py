"""Retrieval with two towers: the vectors of a catalogue of items, and what a query finds among them."""
