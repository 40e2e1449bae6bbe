"""What every node's process shares: life cycle, roles, threads, health, tracing."""
