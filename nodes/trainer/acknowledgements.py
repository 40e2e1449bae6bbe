"""Acknowledgements of batches, sent to the coordinator until confirmed.

The confirmation is then passed to the worker.
"""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import time
from collections.abc import Callable

from ...pipeline.wire.control.messages import LeftOutBatch, TrainedBatch, TrainedBatches
from ...pipeline.wire.rpc.channel import RpcChannel
from ..worker.batches import BatchAck

CHECK_SECONDS = 0.05
FLUSH_SECONDS = 0.2
# Readers keep unconfirmed batches, and a few large ones fill much of their memory for that.
FLUSH_RECORDS = 8
MAX_RECORDS = 1024

log = logging.getLogger(__name__)


class AckSender:
    """Sender of the workers' acknowledgements, several in one message.

    The queue is bounded by the readers' credit: a delivery counts as done only once it is confirmed here, and
    readers have a bounded number of unfinished deliveries.

    Args:
        confirmed: called on the loop with each acknowledgement that the coordinator has recorded.
        synced_iterations: returns the iterations that a synchronization covered, for each message.
        patience_seconds: time to wait for the coordinator's reply.
    """

    def __init__(
        self,
        coordinator: RpcChannel,
        confirmed: Callable[[BatchAck], None],
        synced_iterations: Callable[[], int],
        patience_seconds: float,
    ) -> None:
        self._coordinator = coordinator
        self._confirmed = confirmed
        self._synced_iterations = synced_iterations
        self._patience_seconds = patience_seconds
        self._records: queue.SimpleQueue[BatchAck] = queue.SimpleQueue()
        self._sent_at = -math.inf
        self.confirmed_examples = 0
        self.replayed_examples = 0
        self.left_out_examples = 0

    def put(self, record: BatchAck) -> None:
        """Queue an acknowledgement; any thread may call."""
        self._records.put(record)

    async def run(self) -> None:
        """Send and confirm until cancelled; raises `RemoteError` if the coordinator refuses."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if not self.due(time.monotonic()):
                continue
            records = self._take()
            # Not before: workers queue further records meanwhile, and none of them has a negative age.
            now = self._sent_at = time.monotonic()
            request = TrainedBatches(
                tuple(
                    TrainedBatch(
                        record.id,
                        record.examples,
                        record.loss_sum,
                        record.positives,
                        record.weight,
                        now - record.finished_at,
                        record.others,
                        record.delivery,
                    )
                    for record in records
                    if not record.left_out
                ),
                tuple(
                    LeftOutBatch(record.id, record.examples, record.left_out, record.delivery)
                    for record in records
                    if record.left_out
                ),
                self._synced_iterations(),
            )
            await self._coordinator.call(request, timeout_seconds=self._patience_seconds)
            for record in records:
                if record.left_out:
                    self.left_out_examples += record.examples
                else:
                    self.confirmed_examples += record.examples
                    self.replayed_examples += record.examples if record.replay else 0
                self._confirmed(record)

    def due(self, now: float) -> bool:
        """Return whether to send the waiting acknowledgements.

        One message for several costs hardly more than for one.
        """
        waiting = self._records.qsize()
        return waiting >= FLUSH_RECORDS or (waiting > 0 and now - self._sent_at >= FLUSH_SECONDS)

    def _take(self) -> list[BatchAck]:
        records: list[BatchAck] = []
        while len(records) < MAX_RECORDS and not self._records.empty():
            records.append(self._records.get())
        return records
