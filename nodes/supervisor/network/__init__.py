"""The emulation of a slow network, by a relay between nodes."""
