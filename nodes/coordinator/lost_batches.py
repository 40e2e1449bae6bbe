"""Noticing that batches are lost for good, so that a job does not wait for them for ever."""

from __future__ import annotations

from collections.abc import Iterable

from .ledger import LedgerState
from .membership import Member


def lost_batches(ledger: LedgerState, readers: Iterable[Member]) -> int:
    """How many batches were delivered, are not trained, and are with nobody any more; 0 while one can't say.

    A reader keeps a batch until its trainer says that the coordinator has noted it. So when all readers have
    cut all spans and keep nothing, what the ledger still misses will never come. A heartbeat may be older
    than the ledger: it counts only once its `parsed_examples` says that it knew of every span.
    """
    metrics = [reader.metrics for reader in readers]
    if not metrics or any(int(counts.get("kept_bytes", 1)) for counts in metrics):
        return 0
    if sum(int(counts["parsed_examples"]) for counts in metrics) != ledger.totals.parsed_examples:
        return 0
    return ledger.missing_batches() or 0
