"""Jobs with seeded fault injection, and checks of their ledgers."""
