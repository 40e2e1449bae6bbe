"""The service thread of an embedding node.

The thread owns the node's rows, together with the writer threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ...pipeline.codecs.formats import LinkCodecs
from ...pipeline.embedding.in_flight.applied_pushes import AppliedPushes
from ...pipeline.embedding.storage.applied import AppliedBatches
from ...pipeline.embedding.storage.shard_work import ShardWork
from ...pipeline.embedding.storage.store import ShardStore
from ...pipeline.text.format import data_size
from ...pipeline.types import Float32Array
from ...pipeline.wire.buffers import BufferPool
from ...pipeline.wire.endpoints import token_of
from ...pipeline.wire.frames import MAX_TENSOR_BYTES
from ...pipeline.wire.messages import Attach, Lookup, Push, Pushed, Vectors
from ...pipeline.wire.row_codec import RowCodec
from ...pipeline.wire.schema import Message
from ...pipeline.wire.segment import FLOAT_BYTES
from ...pipeline.wire.sockets import Listener
from ..runtime.process import tune_malloc
from ..runtime.threads import ListeningService
from .shared_memory import SharedMemoryServer
from .writer_threads import WriterThreads

# Bytes kept of unused answers: room for a few large ones for each of a few workers.
IDLE_REPLY_BYTES = 256 << 20
# An identity may claim to have any worker number, and answers repeat it.
MOST_WORKER_DIGITS = 9


class ShardService(ListeningService):
    """Service that answers lookups and applies pushes in order.

    A push that was applied before, by the id of its batch, is answered again and changes nothing: each batch
    is applied exactly once. With several threads, this one keeps the socket and the record of applied
    batches, and writer threads do the rest; they are idle while a command runs.

    Args:
        applied: the batches known to be applied to the rows of `store`; by default none.
        threads: number of threads that read and write the rows; 1 is this one alone.
        shares: whether vectors and gradients may go through memory that workers of this machine offer.
    """

    def __init__(
        self,
        listener: Listener,
        store: ShardStore,
        failed: Callable[[BaseException], None],
        codecs: LinkCodecs | None = None,
        applied: AppliedBatches | None = None,
        threads: int = 1,
        *,
        shares: bool = True,
    ) -> None:
        super().__init__("shard", listener, failed)
        self.store = store
        self.applied = applied or AppliedBatches()
        self._restored = len(self.applied)
        self._applied_pushes = AppliedPushes()
        self._coding = RowCodec(codecs or LinkCodecs(), store.floats_of)
        self._vectors_coded = codecs is not None and codecs.down.lossy
        self._segments = SharedMemoryServer(allowed=shares)
        self._lost: set[str] = set()
        self._pool = BufferPool(IDLE_REPLY_BYTES)
        self._writers = WriterThreads(threads, self.waker.wake, failed) if threads > 1 else None
        if self._writers is not None:
            store.wait_before_replacing(self.finish_taken)
        self._pushes = 0
        self._lookups = 0
        self._looked_up_rows = 0
        self._staleness_sum = 0
        self._staleness_max = 0

    def metrics(self) -> dict[str, Any]:
        """Return counts so far; any thread may call."""
        counts = super().metrics()
        if self._writers is not None:
            counts["busy_seconds"] = max(counts["busy_seconds"], self._writers.busy_seconds)
        return counts | {
            "shared_bytes": self._segments.shared_bytes,
            "shared_segments": len(self._segments),
            "applied_batches": len(self.applied),
            "restored_batches": self._restored,
            "repeated_pushes": self.applied.repeats,
            "lookups": self._lookups,
            "looked_up_rows": self._looked_up_rows,
            "staleness_sum": self._staleness_sum,
            "staleness_max": self._staleness_max,
            "staleness_count": self._pushes,
            **self.store.growth_counts(),
            **self.store.disk_counts(),
        }

    def body(self) -> None:
        """Serve until told to stop; torch uses a single thread here."""
        torch.set_num_threads(1)
        tune_malloc()
        if self._writers is not None:
            self._writers.start()
        try:
            super().body()
        finally:
            if self._writers is not None:
                self._writers.close()
            self.store.close()

    def takes_more(self) -> bool:
        """Return whether the writer threads take more work."""
        return self._writers is None or not self._writers.full

    def finish_taken(self) -> None:
        """Wait until the writer threads are idle."""
        if self._writers is not None:
            self._writers.wait_idle(lambda: self.stopping)

    def served(self) -> None:
        """Send the answers to work that is done."""
        if self._writers is not None:
            self._writers.collect()

    def handle(self, identity: bytes, message: Message) -> None:
        """Answer a lookup or an offer of memory, or apply a push.

        One of a lost process gets no reply: if it lives, it is cut off from the coordinator only. An error
        would end it, and it comes back once it hears that it was declared dead.
        """
        if self._lost and token_of(identity) in self._lost:
            return
        message = self._coding.incoming(message)
        if isinstance(message, Lookup):
            self._look_up(identity, message)
        elif isinstance(message, Push):
            self._push(identity, message)
        elif isinstance(message, Attach):
            self.listener.send(identity, self._segments.attach(identity, message))
        else:
            raise ValueError(f"an embedding node does not accept a {message.KIND}")

    def _run_work(self, work: ShardWork, done: Callable[[], None]) -> None:
        if self._writers is not None:
            self._writers.submit(work, done)
            return
        work.run(0, 1)
        work.finish()
        done()

    def _look_up(self, identity: bytes, message: Lookup) -> None:
        floats, state_floats = self._floats_of(message)
        size = floats + state_floats
        if (size_bytes := size * FLOAT_BYTES) > MAX_TENSOR_BYTES:
            raise ValueError(
                f"{data_size(size_bytes)} of vectors requested; a message holds {data_size(MAX_TENSOR_BYTES)}"
            )
        target = None if self._vectors_coded else self._segments.target(identity, message, size)
        buffer = self._pool.take(size) if target is None else target
        vectors, state = buffer[:floats], buffer[floats:]
        work = self.store.lookup_work(
            message.rows,
            vectors,
            message.counts,
            message.bag_lengths,
            message.keys,
            state if message.with_state else None,
        )
        answer = Vectors(message.request, self._pushes, shared=target is not None)
        if message.with_state:
            # As of now: writer threads look the rows up after all earlier pushes, and before all later ones.
            applied = self._applied_pushes.of_trainer(token_of(identity))
            answer = replace(answer, applied=applied, absent=work.absent)

        def reply() -> None:
            if target is not None:
                self._segments.shared_bytes += target.nbytes
                self.listener.send(identity, answer)
            elif not self._send(identity, message, replace(answer, values=vectors, state=state)):
                return
            self._lookups += 1
            self._looked_up_rows += work.rows

        self._run_work(work, reply)

    def _floats_of(self, message: Lookup) -> tuple[int, int]:
        """Return the floats of the vectors, and of the state that is asked for with them."""
        of_request = len(message.rows) + len(message.keys), message.counts, message.bag_lengths
        state_floats = self.store.state_floats_of(*of_request) if message.with_state else 0
        return self.store.floats_of(*of_request), state_floats

    def _send(self, identity: bytes, message: Lookup, vectors: Vectors) -> bool:
        """Send the vectors over the socket; return False if they are too many."""
        try:
            self.listener.send(identity, self._coding.outgoing(vectors))
        except ValueError as error:
            # Refused here, since writer threads end after `handle`, whose caller would refuse it.
            self.refuse(identity, message, error)
            return False
        return True

    def lose(self, token: str) -> None:
        """Release the memory that workers of a lost process shared; on this thread."""
        self._lost.add(token)
        self._segments.drop(token)
        self._applied_pushes.drop(token)

    def _push(self, identity: bytes, message: Push) -> None:
        repeated = message.id in self.applied
        reply = Pushed(request=message.request, repeated=repeated)
        if message.sequence:
            _require_order(identity, message)
            self._applied_pushes.require_room(token_of(identity))
        if repeated:
            self._note_push(identity, message)
            self.applied.add(message.id)
            self.listener.send(identity, reply)
            return
        work = self.store.push_work(
            message.rows,
            self._gradients(identity, message),
            message.counts,
            message.lr_scale,
            message.bag_lengths,
            message.id,
            message.keys,
        )
        # Marked before the rows change: the writer threads work in order, so later messages find it applied.
        self.applied.add(message.id)
        self._note_push(identity, message)
        staleness = min(max(0, self._pushes - message.version), self._pushes)
        self._staleness_sum += staleness
        self._staleness_max = max(self._staleness_max, staleness)
        self._pushes += 1
        self._run_work(work, lambda: self.listener.send(identity, reply))

    def _note_push(self, identity: bytes, message: Push) -> None:
        if message.sequence:
            worker = _worker_of(identity)
            self._applied_pushes.add(token_of(identity), worker, message.sequence, message.answered_below)

    def _gradients(self, identity: bytes, message: Push) -> Float32Array:
        if not message.segment:
            return message.gradients
        requested = len(message.rows) + len(message.keys)
        floats = self.store.floats_of(requested, message.counts, message.bag_lengths)
        return self._segments.gradients(identity, message, floats)


def _require_order(identity: bytes, push: Push) -> None:
    """Raise ValueError for a number that its worker cannot have given to a push."""
    if push.answered_below > push.sequence:
        raise ValueError(f"push {push.sequence} is said to be answered: all are below {push.answered_below}")
    if _worker_of(identity) < 0:
        raise ValueError(f"{identity!r} is no worker of a trainer, so its pushes have no order")


def _worker_of(identity: bytes) -> int:
    """Return the number of a worker, whose identity is TOKEN/NUMBER; -1 for another thread."""
    worker = identity.decode("ascii", "replace").partition("/")[2]
    return int(worker) if worker.isdecimal() and len(worker) <= MOST_WORKER_DIGITS else -1
