"""Chaos: jobs whose processes are killed and stopped by a seeded schedule, and their accounts checked."""
