"""A reader's sender, an embedding node's service and a worker, with sockets, as threads of one process."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import zmq
from shadowsync.nodes.embedding.server import ShardService
from shadowsync.nodes.reader.deliveries import DeliveryState
from shadowsync.nodes.reader.parser import AHEAD_BATCHES, Parsed
from shadowsync.nodes.reader.sender import Sender
from shadowsync.nodes.runtime.loops import LoopThread
from shadowsync.nodes.runtime.span_proofs import proof_of
from shadowsync.nodes.runtime.threads import Service
from shadowsync.nodes.worker.batches import BatchAck
from shadowsync.nodes.worker.worker import Worker
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.batch import Batch
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage.store import ShardStore
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.control.orders import MemberInfo
from shadowsync.pipeline.wire.field_checks import MOST_EXAMPLES
from shadowsync.pipeline.wire.sockets import Listener
from shadowsync.tests.support.tables.shared import build_shared

from .processes import wait_until

TOKEN = "t"
GRANT_KEY = "k"


class SendingReader(LoopThread):
    """A reader's sender on a loop of its own, as on the reader's."""

    def __init__(self, sender: Sender, failed: Callable[[BaseException], None]) -> None:
        super().__init__("sender", failed)
        self.sender = sender

    async def main(self) -> None:
        await self.sender.serve()


class Training:
    """Trains the same examples again and again under new ids.

    Args:
        trained: called on the worker's thread with each batch; it is confirmed after that.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], job: Job, trained: Callable[[BatchAck], None]
    ) -> None:
        self._failures: list[BaseException] = []
        self._source: queue.Queue[Parsed] = queue.Queue(AHEAD_BATCHES)
        self._heard = trained
        self._given = self.trained = 0
        listeners = [Listener(context, "tcp://127.0.0.1:0") for _ in range(2)]
        members = [
            MemberInfo(f"{role}-0", role, 0, role, listener.endpoint)
            for role, listener in zip(("reader", "embedding"), listeners, strict=True)
        ]
        store = ShardStore(TablePlan.make(job.tables, 1), 0, seed=5, memory_fraction=0.8)
        fail = self._failures.append
        state = DeliveryState(job.data.retain_bytes)
        self.sender = Sender(listeners[0], self._source, state, lambda _: None)
        self._reader = SendingReader(self.sender, fail)

        def refused(reader: str, why: str) -> None:
            fail(ValueError(f"{reader}: {why}"))

        def told(what: str) -> None:
            fail(ValueError(what))

        shared = build_shared(job)
        self.worker = Worker(
            0, shared, context, members, TOKEN, GRANT_KEY, self._on_trained, refused, told, None, fail
        )
        self._proof = proof_of(GRANT_KEY, "reader-0", 0, 0, MOST_EXAMPLES)
        self.threads: list[Service] = [self._reader, ShardService(listeners[1], store, fail), self.worker]
        random = np.random.default_rng(1)
        count, self._seed = job.trainer.batch, job.run.seed
        self._arrays = (
            (random.random(count) < 0.3).astype(np.float32),
            random.standard_normal((count, job.data.dense_width)).astype(np.float32),
            np.stack([random.integers(0, rows, count, dtype=np.int32) for rows in job.column_rows]),
        )

    def train(self, batches: int) -> None:
        """Trains so many more, and waits until the reader keeps none of them."""
        for _ in range(batches):
            batch_id = BatchId(0, 0, self._given, self._seed)
            self._source.put((0, Batch(batch_id, *self._arrays, proof=self._proof)), timeout=60.0)
            self._reader.call(self.sender.wake)
            self._given += 1
        wait_until(self._at_rest, f"{self._given} batches are trained and forgotten")
        assert not self._failures, self._failures

    def _at_rest(self) -> bool:
        done = self.trained == self._given and self.sender.state.retained_bytes == 0
        return done or bool(self._failures)

    def _on_trained(self, record: BatchAck) -> None:
        self._heard(record)
        self.worker.confirm(record.reader, record.sequence)
        self.trained += 1


@contextmanager
def training_in_one_process(job: Job, trained: Callable[[BatchAck], None]) -> Iterator[Training]:
    """A `Training` whose threads run, and end with the block."""
    with ExitStack() as stack:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stack.callback(context.term)
        training = Training(context, job, trained)
        for thread in training.threads:
            thread.start()
            stack.callback(thread.join, 10.0)
            stack.callback(thread.stop)
        yield training
