"""Loops of users that synchronize in the background: `shadowsync.attach`, and their hub."""
