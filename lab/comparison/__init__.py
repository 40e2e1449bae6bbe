"""`shadowsync compare`: one job under several algorithms, side by side."""
