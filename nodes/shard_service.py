"""The embedding node's service thread: the only reader and writer of its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..pipeline.embedding.applied import AppliedBatches
from ..pipeline.embedding.store import ShardStore
from ..pipeline.wire.codecs.registry import LinkCodecs
from ..pipeline.wire.messages import Lookup, Push, Pushed, Vectors
from ..pipeline.wire.pool import BufferPool
from ..pipeline.wire.schema import Message
from ..pipeline.wire.sockets import Listener
from .listening_service import ListeningService
from .row_coding import RowCoding


class ShardService(ListeningService):
    """Answers lookups and applies pushes, in the order in which they come.

    A push that was applied before (contract 7: it has the id of its batch) is answered again and changes
    nothing.
    """

    def __init__(
        self,
        listener: Listener,
        store: ShardStore,
        failed: Callable[[BaseException], None],
        codecs: LinkCodecs | None = None,
    ) -> None:
        super().__init__("shard", listener, failed)
        self.store = store
        self.applied = AppliedBatches()
        self._coding = RowCoding(codecs or LinkCodecs(), store.dim)
        self._pool = BufferPool()
        self._pushes = 0
        self._lookups = 0
        self._looked_up_rows = 0
        self._staleness_sum = 0
        self._staleness_max = 0

    def metrics(self) -> dict[str, Any]:
        """Counts so far; any thread may read them."""
        return super().metrics() | {
            "applied_batches": len(self.applied),
            "repeated_pushes": self.applied.repeats,
            "lookups": self._lookups,
            "looked_up_rows": self._looked_up_rows,
            "staleness_sum": self._staleness_sum,
            "staleness_max": self._staleness_max,
            "staleness_count": self._pushes,
        }

    def body(self) -> None:
        """See `ListeningService.body`; this thread is one for torch too."""
        torch.set_num_threads(1)
        super().body()

    def handle(self, identity: bytes, message: Message) -> None:
        """See the class."""
        message = self._coding.incoming(message)
        if isinstance(message, Lookup):
            self._look_up(identity, message)
        elif isinstance(message, Push):
            self._push(identity, message)
        else:
            raise ValueError(f"an embedding node takes no {message.KIND}")

    def _look_up(self, identity: bytes, message: Lookup) -> None:
        rows = len(message.rows)
        buffer = self._pool.take(rows * self.store.dim)
        values = buffer.reshape(rows, self.store.dim)
        trackers = None
        try:
            self.store.lookup(message.rows, values)
            answer = Vectors(request=message.request, version=self._pushes, values=values)
            trackers = self.listener.send(identity, self._coding.outgoing(answer))
        finally:
            self._pool.sent(buffer, trackers or [])
        self._lookups += 1
        self._looked_up_rows += rows

    def _push(self, identity: bytes, message: Push) -> None:
        if message.gradients.shape != (len(message.rows), self.store.dim):
            raise ValueError(
                f"gradients {list(message.gradients.shape)} for {len(message.rows)} rows of {self.store.dim}"
            )
        repeated = message.id in self.applied
        if repeated:
            self.applied.add(message.id)
        else:
            self.store.apply(message.rows, message.gradients)
            self.applied.add(message.id)
            staleness = max(0, self._pushes - message.version)
            self._staleness_sum += staleness
            self._staleness_max = max(self._staleness_max, staleness)
            self._pushes += 1
        self.listener.send(identity, Pushed(request=message.request, repeated=repeated))
