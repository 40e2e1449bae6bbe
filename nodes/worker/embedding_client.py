"""A worker's requests to the embedding nodes, resent until answered, each answered once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np

from ...pipeline.codecs.formats import CodecError, LinkCodecs
from ...pipeline.embedding.in_flight.id_finder import IdFinder
from ...pipeline.embedding.in_flight.rows_in_flight import NO_ANSWER, RowsInFlight
from ...pipeline.embedding.lookup.request import LookupPlan
from ...pipeline.errors import ExitCode, ShadowSyncError
from ...pipeline.types import Float32Array
from ...pipeline.wire.messages import Attached, Failure, Lookup, Push, Pushed, Vectors
from ...pipeline.wire.row_codec import RowCodec
from ...pipeline.wire.rpc.retransmission import LOOKUP
from ...pipeline.wire.schema import Message
from ...pipeline.wire.sockets import Connection
from ..embedding.shared_memory import Lease, SharedMemoryClient
from .batches import RowRequests

B = TypeVar("B", bound=RowRequests)
_NO_FLOATS: Final = np.zeros(0, np.float32)


class LookupRefused(ShadowSyncError):
    """An embedding node could not understand or fulfil a worker's request.

    It costs the trainer, not the job: others train its batches.
    """

    exit_code = ExitCode.STOPPED_BY_DEATH


@dataclass(slots=True)
class _PendingRequest(Generic[B]):
    batch: B
    shard: int
    message: Lookup | Push
    sent_at: float
    lease: Lease | None = None
    # Whether the request had a lease of a node that has been replaced.
    lost_lease: bool = False
    is_resent: bool = False


class EmbeddingClient(Generic[B]):
    """Client of all embedding nodes, in their order; owned by the worker's thread.

    B is what it keeps of a batch.

    Args:
        shared_memory: a client for each node, if memory is to be shared with them.
        rows: makes the rows of batches exact; None to take them as the nodes answer.
        worker: this worker's number in its trainer.

    Attributes:
        lookups: number of lookups sent, without repeats.
        resent: number of requests sent again, including pushes.
        resent_pushes: number of pushes sent again.
        lost: whether a node is lost for good.
    """

    def __init__(
        self,
        connections: Sequence[Connection],
        names: Sequence[str],
        codecs: LinkCodecs | None = None,
        shared_memory: Sequence[SharedMemoryClient] = (),
        rows: RowsInFlight | None = None,
        worker: int = 0,
    ) -> None:
        self.connections = list(connections)
        self.names = list(names)
        codecs = codecs or LinkCodecs()
        self._coding = RowCodec(codecs)
        self.shared_memory = list(shared_memory)
        self._can_lend = {Lookup: not codecs.down.lossy, Push: not codecs.up.lossy}
        self._rows, self._worker, self._finder = rows, worker, IdFinder()
        # The last number of a push to each node.
        self._sequences = [0] * len(self.names)
        for shard, name in enumerate(self.names):
            self._turn_to(shard, name)
        self._next_request = 1
        self._pending: dict[int, _PendingRequest[B]] = {}
        self.lookups = 0
        self.resent = 0
        self.resent_pushes = 0
        self.lost = False
        # Dead nodes that may still be replaced.
        self._missing: set[int] = set()

    @property
    def named_connections(self) -> list[tuple[str, Connection]]:
        return list(zip(self.names, self.connections, strict=True))

    @property
    def outstanding(self) -> int:
        """Number of requests that are not answered."""
        return len(self._pending)

    @property
    def pending_nodes(self) -> set[str]:
        """Names of the living nodes with unanswered requests."""
        shards = {request.shard for request in self._pending.values()}
        return {self.names[shard] for shard in shards - self._missing}

    @property
    def pending_pushes(self) -> int:
        """Number of pushes that are not answered."""
        return sum(isinstance(request.message, Push) for request in self._pending.values())

    def lookup_sent_at(self, reply: Message) -> float | None:
        """Return the send time of the lookup that this answers."""
        request = self._pending.get(getattr(reply, "request", 0))
        return request.sent_at if request is not None and isinstance(request.message, Lookup) else None

    def look_up(self, batch: B, requests: Sequence[LookupPlan], now: float, *, exact: bool = False) -> None:
        """Request a batch's vectors from every node, even from those without its rows.

        `exact` says that `complete` will be called, if rows are to be exact.
        """
        batch.requests = list(requests)
        batch.versions = [0] * len(requests)
        batch.replies = [_NO_FLOATS for _ in requests]
        if self._rows is not None and exact:
            batch.ticket = self._rows.begin()
            batch.answers = [NO_ANSWER for _ in requests]
        for shard, request in enumerate(requests):
            batch.pending_lookups += 1
            self._send_lookup(batch, shard, request, now)

    def complete(self, batch: B) -> None:
        """Add the trainer's own pushes to the rows of a batch whose vectors have arrived, before its step."""
        if self._rows is None or not batch.ticket:
            return
        for shard, (request, answer) in enumerate(zip(batch.requests, batch.answers, strict=True)):
            # So that staleness does not count what is known.
            batch.versions[shard] += self._rows.complete(request, answer, self._finder)
            batch.replies[shard] = answer.values
        self.release(batch)

    def release(self, batch: B) -> None:
        """Wait no longer for a batch's rows: they are complete, or not needed."""
        if self._rows is not None and batch.ticket:
            self._rows.end(batch.ticket)
            batch.ticket = 0

    def push(self, batch: B, gradients: Sequence[Float32Array], now: float) -> None:
        """Send every node the gradients of its part.

        A node without any of the rows gets a push, too, since every node records every batch.
        """
        targets = batch.targets or self.targets(batch)
        batch.targets = []
        for shard, (request, gradient, lease) in enumerate(
            zip(batch.requests, gradients, targets, strict=True)
        ):
            batch.unpushed += 1
            if lease is not None and not lease.holds(gradient):
                lease.values[:] = gradient
            version = batch.versions[shard]
            number, batch_id = self._take_number(), batch.id
            rows, counts, lengths = request.rows, request.counts, request.bag_lengths
            sequence, below = self._next_sequence(shard) if batch.answers else (0, 0)
            message = Push(
                number,
                batch_id,
                version,
                rows,
                gradient,
                batch.lr_scale,
                counts,
                lengths,
                keys=request.keys,
                sequence=sequence,
                answered_below=below,
            )
            self._send(batch, shard, message, now, lease=lease)
            if batch.answers:
                self._record(batch, shard, message)
        batch.answers = []
        self.release(batch)

    def _next_sequence(self, shard: int) -> tuple[int, int]:
        """Return the number of the next push to a node, and that below which all are answered."""
        self._sequences[shard] = sequence = self._sequences[shard] + 1
        unanswered = (
            request.message.sequence
            for request in self._pending.values()
            if request.shard == shard and isinstance(request.message, Push) and request.message.sequence
        )
        return sequence, min(unanswered, default=sequence)

    def _record(self, batch: B, shard: int, message: Push) -> None:
        assert self._rows is not None
        self._rows.pushed(
            batch.requests[shard],
            batch.answers[shard],
            self._coding.pushed(message.gradients),
            worker=self._worker,
            sequence=message.sequence,
            lr_scale=message.lr_scale,
            batch=message.id,
            again=batch.is_replay,
        )

    def targets(self, batch: B) -> list[Lease | None]:
        """Return, per node, shared memory for its gradients, or None.

        The batch keeps it. Gradients that are in it at the time of `push` are sent without a copy.
        """
        batch.targets = [
            self._take_lease(shard, Push, request.floats) for shard, request in enumerate(batch.requests)
        ]
        return batch.targets

    def receive(self, shard: int, message: Message) -> B | None:
        """Process an answer; return the batch if this answers its last push.

        Raises LookupRefused for a refusal, and for an answer that does not fit its request.
        """
        number = getattr(message, "request", 0)
        if isinstance(message, Failure):
            raise LookupRefused(message.what, where=self.names[shard])
        if isinstance(message, Attached) and self.shared_memory:
            self.shared_memory[shard].receive_reply(message)
            return None
        request = self._pending.get(number)
        if request is None or request.shard != shard:
            return None
        batch = request.batch
        if isinstance(message, Vectors) and message.shared and request.lost_lease:
            # A node that came back takes its own place: it had answered before, and answers the repeat.
            return None
        try:
            message = self._coding.incoming(message)
        except CodecError as error:
            raise LookupRefused(f"its answer cannot be decoded: {error}", where=self.names[shard]) from error
        if isinstance(message, Vectors) and isinstance(request.message, Lookup):
            self._store_vectors(request, message)
        elif isinstance(message, Pushed) and isinstance(request.message, Push):
            batch.unpushed -= 1
            if self._rows is not None and request.message.sequence:
                self._rows.answered(
                    shard,
                    self._worker,
                    request.message.sequence,
                    self.names[shard],
                    changed=not message.repeated,
                    is_resent=request.is_resent,
                )
        else:
            return None
        del self._pending[number]
        return batch if isinstance(message, Pushed) and batch.unpushed == 0 else None

    def lose(self, name: str) -> None:
        """Mark a node as dead; its requests wait for a replacement.

        The caller must close its connection.
        """
        index = self.names.index(name)
        self._missing.add(index)
        if self.shared_memory:
            self.shared_memory[index].close()

    def replace(self, index: int, name: str, connection: Connection, now: float) -> None:
        """Switch to a replacement node, and resend unanswered requests."""
        self.names[index], self.connections[index] = name, connection
        self._turn_to(index, name)
        if self.shared_memory:
            self.shared_memory[index] = self.shared_memory[index].successor(name)
        self._missing.discard(index)
        waiting = [request for request in self._pending.values() if request.shard == index]
        # Pushes first: it may have them, and then says so in its answers to lookups.
        for request in sorted(waiting, key=lambda request: isinstance(request.message, Lookup)):
            # Its memory was shared with the old node.
            request.lost_lease |= request.lease is not None
            request.lease = None
            self._send_again(request, now)

    def _turn_to(self, shard: int, name: str) -> None:
        if self._rows is not None:
            self._rows.connect(shard, name)

    def give_up(self) -> list[B]:
        """Consider dead nodes, and their rows, lost for good.

        Returns the batches with a push that one of them never answered.
        """
        if not self._missing:
            return []
        self.lost = True
        dropped = {n: request for n, request in self._pending.items() if request.shard in self._missing}
        self._pending = {n: request for n, request in self._pending.items() if n not in dropped}
        pushed = [request.batch for request in dropped.values() if isinstance(request.message, Push)]
        stranded = []
        for batch in pushed:
            if not batch.stranded:
                batch.stranded = True
                stranded.append(batch)
        return stranded

    def forget_lookups(self) -> None:
        """Drop lookups whose answers are no longer needed."""
        for request in self._pending.values():
            if isinstance(request.message, Lookup):
                self._retire_lease(request)
                self.release(request.batch)
        self._pending = {
            n: request for n, request in self._pending.items() if isinstance(request.message, Push)
        }

    def resend_overdue(self, now: float) -> None:
        """Send overdue requests again, whole and over the socket; nodes recognise repeats."""
        for shard in range(len(self.shared_memory)):
            self._send_offer(shard, now)
        for request in self._pending.values():
            if request.shard not in self._missing and LOOKUP.due(request.sent_at, now):
                self._retire_lease(request)
                self._send_again(request, now)

    def _send_again(self, request: _PendingRequest[B], now: float) -> None:
        request.sent_at, request.is_resent = now, True
        self.resent += 1
        self.resent_pushes += isinstance(request.message, Push)
        self.connections[request.shard].send(self._coding.outgoing(request.message))

    def _store_vectors(self, request: _PendingRequest[B], message: Vectors) -> None:
        batch, shard = request.batch, request.shard
        plan, name = batch.requests[shard], self.names[shard]
        values, state = message.values, message.state
        if message.shared:
            if request.lease is None:
                raise LookupRefused("it answered into shared memory that was not lent to it", where=name)
            leased = request.lease.values
            values, state = leased[: plan.floats], leased[plan.floats :]
            self.shared_memory[shard].shared_bytes += request.lease.values.nbytes
        if batch.answers:
            assert self._rows is not None
            try:
                answer = self._rows.answer(plan, name, values, state, message.absent, message.applied)
            except ValueError as error:
                raise LookupRefused(f"its answer cannot be: {error}", where=name) from error
            batch.answers[shard] = answer
        elif len(values) != plan.floats:
            raise LookupRefused(
                f"it answered {len(values)} floats, not the {plan.floats} requested", where=name
            )
        batch.replies[shard], batch.versions[shard] = values, message.version
        batch.pending_lookups -= 1

    def _state_floats(self, batch: B, plan: LookupPlan) -> int:
        """Return how many floats of optimizer state the answer to a lookup has."""
        return self._rows.state_floats(plan) if self._rows is not None and batch.answers else 0

    def _send_lookup(self, batch: B, shard: int, plan: LookupPlan, now: float) -> None:
        self.lookups += 1
        message = Lookup(
            self._take_number(),
            plan.rows,
            plan.counts,
            plan.bag_lengths,
            keys=plan.keys,
            with_state=bool(batch.answers),
        )
        floats = plan.floats + self._state_floats(batch, plan)
        if self.shared_memory:
            self._send_offer(shard, now, floats if self._can_lend[Lookup] else 0)
        lease = self._take_lease(shard, Lookup, floats)
        self._send(batch, shard, message, now, lease)

    def _send(
        self,
        batch: B,
        shard: int,
        message: Lookup | Push,
        now: float,
        lease: Lease | None = None,
    ) -> None:
        if lease is not None and not self.shared_memory[shard].has(lease):
            # Another segment was offered meanwhile, so the node drops this one.
            lease = None
        # The whole message is kept, since a repeat goes over the socket.
        self._pending[message.request] = _PendingRequest(batch, shard, message, now, lease)
        if shard in self._missing:
            return
        if lease is None:
            self.connections[shard].send(self._coding.outgoing(message))
            return
        self.connections[shard].send(lease.carry(message))
        if isinstance(message, Push):
            self.shared_memory[shard].shared_bytes += lease.values.nbytes

    def _take_lease(self, shard: int, kind: type[Lookup] | type[Push], floats: int) -> Lease | None:
        return self.shared_memory[shard].take(floats) if self.shared_memory and self._can_lend[kind] else None

    def _send_offer(self, shard: int, now: float, floats: int = 0) -> None:
        offer = None if shard in self._missing else self.shared_memory[shard].offer(now, floats)
        if offer is not None:
            self.connections[shard].send(offer)

    def _retire_lease(self, request: _PendingRequest[B]) -> None:
        """Exclude the lease from reuse: the node may still write to it."""
        if request.lease is not None:
            self.shared_memory[request.shard].retire(request.lease)

    def _take_number(self) -> int:
        number, self._next_request = self._next_request, self._next_request + 1
        return number
