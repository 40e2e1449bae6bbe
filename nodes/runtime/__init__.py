"""The common part of all nodes: life cycle, roles, threads, health, tracing."""
