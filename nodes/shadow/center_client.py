"""The client of the sync nodes: exchanges, reads and seeds of the center.

A thread has one `CenterClient`, with one `CenterConnection` per sync node. Requests are sent in chunks, and
repeated until answered; all slices are in flight at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
import zmq

from ...pipeline.codecs.feedback import NO_REFERENCE, Deltas, Reference, decode_chunk
from ...pipeline.codecs.formats import LinkCodecs, Payload
from ...pipeline.types import Float32Array
from ...pipeline.wire.buffers import BufferPool, bytes_of
from ...pipeline.wire.center_messages import (
    CenterContribution,
    CenterExchange,
    CenterRead,
    CenterSeed,
    CenterValues,
)
from ...pipeline.wire.control.orders import MemberInfo
from ...pipeline.wire.sockets import open_dealer
from ...sync_algos.base import PeerLost, Slice
from ...sync_algos.memory.center import split_evenly
from ..runtime.members import Traffic
from .center_connection import QUEUED_CHUNKS, CenterConnection, Decode


class _OpenExchange:
    """An unfinished exchange: its number, and its chunks as first sent.

    `examples` is the number behind the values if the center merges, else None.
    """

    def __init__(
        self,
        number: int,
        part: Slice,
        values: Float32Array,
        reference: Reference | Deltas,
        examples: int | None,
    ) -> None:
        self.number = number
        self._examples = examples
        self._start = part.start
        self._values = values
        self._reference = reference
        self._chunks: dict[int, CenterExchange] = {}

    def chunk(self, start: int, stop: int) -> CenterExchange:
        """Return the message with these elements of the values.

        Encoding changes the reference, so a repeat sends the chunk as first encoded.
        """
        if start not in self._chunks:
            offset = start - self._start
            version, encoded = self._reference.encode(offset, self._values[offset : offset + stop - start])
            fields = (self.number, start, stop - start, version, encoded.payload)
            self._chunks[start] = self._message(fields)
        return self._chunks[start]

    def _message(self, fields: tuple[int, int, int, int, Payload]) -> CenterExchange:
        if self._examples is not None:
            return CenterContribution(*fields, self._examples)
        return CenterExchange(*fields)


@dataclass
class _CenterSlice:
    """A slice: its sync node, and the state of its exchanges.

    `answers` is the reference of the answers, None if they are deltas.
    """

    connection: CenterConnection
    reference: Reference | Deltas
    answers: Reference | None
    open: _OpenExchange | None = None


class CenterClient:
    """The center, for one thread's asyncio loop; implements `Center` of `sync_algos.base`.

    Create the client on that loop. A request is repeated after half its timeout. It ends with PeerLost at
    the timeout, or at once if the node refuses it or the coordinator reports the node as lost.

    Exchanges are encoded by `codecs`. With a lossy codec up, both ends keep the last values of each slice as
    the reference. A failed exchange leaves no reference, and the next one is sent as float32. With `deltas`
    the answers have such a reference instead. Reads and seeds are float32.

    Args:
        counts_once: whether each exchange counts once and a slice is never made again, see `Algorithm`: then
            only the same node, which came back, takes its slice again, and the open exchange goes on with it.
        deltas: whether deltas are sent, and the center's values come back; see `Algorithm.counts_once`.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        members: Sequence[MemberInfo],
        numel: int,
        identity: str,
        *,
        chunk_bytes: int,
        timeout_seconds: float,
        codecs: LinkCodecs | None = None,
        counts_once: bool = False,
        deltas: bool = False,
    ) -> None:
        self._deltas = deltas
        self._is_exact = False
        self._counts_once = counts_once
        self._codecs = codecs or LinkCodecs()
        self._next_request = 1
        self._replied_slices = 0
        self.traffic = Traffic()

        def connect(member: MemberInfo, part: Slice) -> CenterConnection:
            return CenterConnection(
                member,
                part,
                open_dealer(context, member.endpoint, identity, QUEUED_CHUNKS),
                chunk=max(1, chunk_bytes // 4),
                timeout_seconds=timeout_seconds,
                traffic=self.traffic,
            )

        self._connect = connect
        self._slices: dict[Slice, _CenterSlice] = {}
        with ExitStack() as opened:
            opened.callback(self.close)
            for member, part in zip(members, split_evenly(numel, len(members)), strict=False):
                self._slices[part] = self._new_slice(connect(member, part))
            opened.pop_all()
        # Connections to replaced nodes, kept for their counts.
        self._closed: list[CenterConnection] = []
        self._lost: set[str] = set()
        # Holds one answer per slice.
        self._reply_buffers = BufferPool(sum(bytes_of(len(part)) for part in self._slices))

    def _new_slice(self, connection: CenterConnection) -> _CenterSlice:
        codecs, elements = self._codecs, len(connection.part)
        if self._deltas:
            return _CenterSlice(connection, Deltas(codecs.up, elements), Reference(codecs.down, elements))
        return _CenterSlice(connection, Reference(codecs.up, elements), None)

    @property
    def _connections(self) -> list[CenterConnection]:
        return [held.connection for held in self._slices.values()]

    @property
    def slices(self) -> tuple[Slice, ...]:
        """The slices of the flat buffer in order; together they cover it."""
        return tuple(self._slices)

    @property
    def sent_bytes(self) -> int:
        """Bytes sent so far; any thread may read it."""
        return self.traffic.sent

    @property
    def received_bytes(self) -> int:
        """Bytes received so far; any thread may read it."""
        return self.traffic.received

    @property
    def refused_messages(self) -> int:
        """Received messages that could not be used, including refusals of sync nodes."""
        return sum(connection.refusals.count for connection in (*self._closed, *self._connections))

    @property
    def reference_bytes(self) -> int:
        """Memory of the references in bytes; any thread may read it."""
        ends = [end for held in self._slices.values() for end in (held.reference, held.answers)]
        return sum(end.memory_bytes for end in ends if end is not None)

    def metrics(self) -> dict[str, int]:
        """Return this client's counts, to be summed over a trainer's threads.

        Any thread may call.
        """
        counts = {
            "reference_bytes": self.reference_bytes,
            "answered_slices": self._replied_slices,
            "refused_messages": self.refused_messages,
        }
        connections = [*self._closed, *self._connections]
        ends = {f"to/{connection.member.name}": connection.sent_bytes for connection in connections}
        ends |= {f"from/{connection.member.name}": connection.received_bytes for connection in connections}
        return self.traffic.metrics("center") | counts | ends

    async def exchange(self, part: Slice, values: torch.Tensor, examples: int | None = None) -> torch.Tensor:
        """See `Center.exchange`.

        `values` must not change until this returns or raises. A slice has one exchange at a time.
        """
        if values.dtype != torch.float32 or values.shape != (len(part),) or not values.is_contiguous():
            raise ValueError(
                f"{values.dtype} of shape {tuple(values.shape)} given; "
                f"contiguous float32 [{len(part)}] is expected"
            )
        held, number = self._slices[part], self._number()
        held.reference.begin()
        if held.answers is not None:
            held.answers.begin()
        held.open = _OpenExchange(number, part, values.numpy(), held.reference, examples)
        return await self.resume_exchange(part)

    async def resume_exchange(self, part: Slice) -> torch.Tensor:
        """See `Center.resume_exchange`; a sync node keeps the answer until this thread's next exchange."""
        held = self._slices[part]
        exchange, connection = held.open, held.connection
        if exchange is None:
            raise RuntimeError(f"the last exchange of elements {part.start} to {part.stop} was answered")
        reply = self._reply_buffers.take(len(part))
        await connection.request(exchange.number, exchange.chunk, reply, self._decoder(held.answers))
        held.reference.complete(exchange.number)
        if (answers := held.answers) is not None and answers.is_enabled:
            answers.values[:] = reply
            answers.complete(exchange.number)
        held.open = None
        self._replied_slices += 1
        return torch.from_numpy(reply)

    def lost(self, part: Slice) -> torch.Tensor:
        """See `Center.lost`; only with `deltas`."""
        reference = self._slices[part].reference
        assert isinstance(reference, Deltas)
        return torch.from_numpy(reference.lost)

    @property
    def is_exact(self) -> bool:
        """See `Center.is_exact`."""
        return self._is_exact

    def set_exact(self, *, is_exact: bool) -> None:
        """Have deltas sent as float32, so that the center gets what codecs have lost before; or no more."""
        self._is_exact = is_exact
        for held in self._slices.values():
            if isinstance(held.reference, Deltas):
                held.reference.is_exact = is_exact

    def _decoder(self, answers: Reference | None) -> Decode:
        """Return what decodes answers: deltas, or values with a reference."""
        down = self._codecs.down

        def decode(offset: int, message: CenterValues) -> Float32Array:
            if answers is None:
                return decode_chunk(down, message.payload, message.elements, coded=message.coded)
            base = answers.base if message.coded and down.lossy else NO_REFERENCE
            return answers.decode(offset, base, message.payload, message.elements)

        return decode

    async def read(self, part: Slice) -> torch.Tensor:
        """Return the center's current slice, float32 [len(part)]; raises PeerLost."""
        reply = np.empty(len(part), dtype=np.float32)
        await self._read_into(part, reply)
        return torch.from_numpy(reply)

    async def read_all(self) -> torch.Tensor:
        """Read the whole center, float32 [numel]; raises PeerLost."""
        whole = np.empty(self.slices[-1].stop, dtype=np.float32)
        await asyncio.gather(*(self._read_into(part, whole[part.start : part.stop]) for part in self._slices))
        return torch.from_numpy(whole)

    async def _read_into(self, part: Slice, target: Float32Array) -> None:
        number = self._number()
        await self._slices[part].connection.request(number, lambda a, b: CenterRead(number, a, b), target)

    async def seed(self, flat: torch.Tensor, number: int | None = None, *, is_kept: bool = False) -> None:
        """Send every sync node its slice's bounds and first value.

        If `flat` `is_kept`, it never changes any more, and is not copied: frames are sent as they are, and a
        repeat may still be queued when this returns.

        If `number` is given, only the node with that slice. A node that is reported as lost is left out: its
        replacement is seeded. Raises PeerLost for another one that does not answer.
        """
        array = flat.numpy() if is_kept else flat.numpy().copy()

        async def seed_one(connection: CenterConnection) -> None:
            request, part = self._number(), connection.part

            def chunk(start: int, stop: int) -> CenterSeed:
                return CenterSeed(request, part.start, part.stop, start, array[start:stop])

            try:
                await connection.request(request, chunk, None)
            except PeerLost:
                if not connection.lost:
                    raise

        connections = self._connections
        seeded = connections if number is None else connections[number : number + 1]
        await asyncio.gather(*(seed_one(connection) for connection in seeded))

    async def replace(self, number: int, member: MemberInfo) -> None:
        """Replace the node of one slice.

        An unanswered exchange is dropped, and the next one has no reference, unless exchanges count once.
        Does nothing if the slice already has this node.
        """
        # With more nodes than elements, the last ones hold nothing.
        if number >= len(self._slices):
            return
        part = self.slices[number]
        held = self._slices[part]
        before = held.connection
        if before.member.token == member.token:
            return
        connection = self._connect(member, part)
        if member.token in self._lost:
            connection.mark_lost()
        if self._counts_once:
            held.connection = connection
        else:
            self._slices[part] = self._new_slice(connection)
        self._closed.append(before)
        before.close()

    def mark_lost(self, token: str) -> None:
        """Mark the node with this token as lost.

        Pending and later requests end with PeerLost.
        """
        self._lost.add(token)
        for connection in self._connections:
            if connection.member.token == token:
                connection.mark_lost()

    def mark_all_lost(self) -> None:
        """Mark the node of each slice as lost, since this one ends."""
        for connection in self._connections:
            connection.mark_lost()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def _number(self) -> int:
        number, self._next_request = self._next_request, self._next_request + 1
        return number
