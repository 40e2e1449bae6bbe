"""The control plane: server, sessions, members, progress, monitoring, control of the gap."""
