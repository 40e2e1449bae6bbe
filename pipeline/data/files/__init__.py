"""Files, topics and URLs, and the lines and bytes in them."""
