"""Quality sums that merge over nodes, and what is computed from them."""
