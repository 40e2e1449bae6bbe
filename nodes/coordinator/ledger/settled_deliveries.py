"""The deliveries that trainers have acknowledged; no I/O.

Each is acknowledged once. So of a batch that comes twice, its reader has made two deliveries, or its trainer
acknowledges one of them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ....pipeline.wire.control.messages import UNKNOWN_DELIVERY, DeliveryKey
from .batch_sizes import BatchSizes


class SettledDeliveries:
    """Sequences of the acknowledged deliveries, by trainer, reader and worker.

    Memory is O(gaps), as of `BatchSizes`. Owned by the coordinator's loop.
    """

    def __init__(self) -> None:
        self._settled: dict[tuple[str, str, int], BatchSizes] = {}

    def has(self, trainer: str, delivery: DeliveryKey) -> bool:
        """Return whether a trainer has acknowledged this delivery."""
        reader, worker, sequence = delivery
        settled = self._settled.get((trainer, reader, worker))
        return settled is not None and sequence in settled

    def add(self, trainer: str, delivery: DeliveryKey) -> None:
        """Record an acknowledgement, unless it does not say of which delivery."""
        if delivery == UNKNOWN_DELIVERY:
            return
        reader, worker, sequence = delivery
        key = trainer, reader, worker
        if key not in self._settled:
            self._settled[key] = BatchSizes()
        self._settled[key].add(sequence, 1)

    def saved(self) -> list[Any]:
        """Return them as plain values, which are not copied."""
        return [[*key, settled.saved()] for key, settled in self._settled.items()]

    def restore(self, saved: Iterable[Any]) -> None:
        """Take over those from `saved`."""
        self._settled = {
            (trainer, reader, worker): BatchSizes.of_saved(settled)
            for trainer, reader, worker, settled in saved
        }
