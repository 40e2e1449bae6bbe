"""The ledger: what was read, trained and applied, its records, its file."""
