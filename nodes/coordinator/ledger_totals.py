"""What the ledger counts of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LedgerTotals:
    """The ledger's sums; `untrained` are the distinct batches that were left out and not trained either."""

    trained_examples: int = 0
    trained_batches: int = 0
    distinct_examples: int = 0
    distinct_batches: int = 0
    replayed_examples: int = 0
    returned_examples: int = 0
    returned_batches: int = 0
    left_out_examples: int = 0
    left_out_batches: int = 0
    untrained_examples: int = 0
    untrained_batches: int = 0
    parsed_examples: int = 0
    bad_rows: int = 0
