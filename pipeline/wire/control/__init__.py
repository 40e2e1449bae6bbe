"""Messages of the control plane: verbs, requests, orders, replies."""
