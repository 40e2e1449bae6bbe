"""Messages and the sockets that carry them."""
