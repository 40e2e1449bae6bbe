"""A batch's lookup: requests per node, and vectors from their replies."""
