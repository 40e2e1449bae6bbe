"""Which rows of which table go to which embedding node."""
