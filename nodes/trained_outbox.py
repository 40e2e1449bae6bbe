"""What workers trained, on its way to the coordinator: told until confirmed, then confirmed to the worker."""

from __future__ import annotations

import asyncio
import logging
import queue
import time
from collections.abc import Callable
from typing import Any

from ..pipeline.wire.conversation import Conversation
from .worker import Trained

FLUSH_SECONDS = 0.05
ASK_SECONDS = 120.0
RECORDS_AT_ONCE = 1024

log = logging.getLogger(__name__)


class TrainedOutbox:
    """Gathers records from the workers' threads and tells them to the coordinator in batches.

    The queue is bounded by the readers' credit: a delivery counts as done only once it is confirmed here,
    and readers keep a bounded number of those.
    """

    def __init__(
        self,
        coordinator: Conversation,
        confirmed: Callable[[Trained], None],
        synced_iterations: Callable[[], int],
    ) -> None:
        self._coordinator = coordinator
        self._confirmed = confirmed
        self._synced_iterations = synced_iterations
        self._records: queue.SimpleQueue[Trained] = queue.SimpleQueue()
        self.confirmed_examples = 0

    def put(self, record: Trained) -> None:
        """Any thread may call."""
        self._records.put(record)

    async def run(self) -> None:
        """Tells and confirms until cancelled; raises `Refused` if the coordinator no longer takes them."""
        while True:
            records = self._take()
            if not records:
                await asyncio.sleep(FLUSH_SECONDS)
                continue
            now = time.monotonic()
            body: dict[str, Any] = {
                "batches": [
                    [list(r.id), r.examples, r.loss_sum, r.positives, now - r.finished_at] for r in records
                ],
                "synced_iterations": self._synced_iterations(),
            }
            await self._coordinator.ask("trained", body, timeout_seconds=ASK_SECONDS)
            for record in records:
                self.confirmed_examples += record.examples
                self._confirmed(record)

    def _take(self) -> list[Trained]:
        records: list[Trained] = []
        while len(records) < RECORDS_AT_ONCE and not self._records.empty():
            records.append(self._records.get())
        return records
