"""`shadowsync simulate`: synchronization of up to ten thousand trainers, as events."""
