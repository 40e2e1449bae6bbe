"""The coordinator: membership, ledger, phases, checkpoints, report."""
