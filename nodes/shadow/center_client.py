"""A trainer thread's link to the sync nodes: exchanges, reads and seeds, in chunks, all slices at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import torch
import zmq
import zmq.asyncio

from ...pipeline.codecs.reference import Reference
from ...pipeline.codecs.registry import LinkCodecs
from ...pipeline.wire.buffers import BufferPool, bytes_of
from ...pipeline.wire.messages import CenterExchange, CenterRead, CenterSeed
from ...sync_algos.base import Slice
from ...sync_algos.memory import split_evenly
from ..runtime.role import MemberInfo
from ..runtime.traffic import Traffic
from .center_line import CenterLine


class CenterLink:
    """The center as one thread's asyncio loop sees it; implements `Center` of `sync_algos.base`.

    Made on that loop. Every request is sent again at half its timeout, and given up with PeerLost at the
    timeout, or at once when the node refuses it or the coordinator says that the node is gone.

    Exchanges travel by `codecs`. With a lossy one up, both ends keep the last values of each slice as the
    reference; an exchange that fails leaves none, and the next one travels as float32. Reads and seeds are
    float32.
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
    ) -> None:
        codecs = codecs or LinkCodecs()
        self._next_request = 1
        self._answered_slices = 0
        self.traffic = Traffic()
        async_context = zmq.asyncio.Context(context)
        self._lines = [
            CenterLine.connect(
                async_context,
                identity,
                member,
                part=part,
                chunk=max(1, chunk_bytes // 4),
                down=codecs.down,
                timeout_seconds=timeout_seconds,
                traffic=self.traffic,
            )
            for member, part in zip(members, split_evenly(numel, len(members)), strict=False)
        ]
        self._references = {line.part: Reference(codecs.up, len(line.part)) for line in self._lines}
        # One answer of each slice.
        self._answers = BufferPool(sum(bytes_of(len(line.part)) for line in self._lines))
        self._tasks = [asyncio.get_running_loop().create_task(line.receive()) for line in self._lines]

    @property
    def slices(self) -> tuple[Slice, ...]:
        """The slices, in order; together they are the whole flat buffer."""
        return tuple(line.part for line in self._lines)

    @property
    def sent_bytes(self) -> int:
        """All that went into the sockets; any thread may read it."""
        return self.traffic.sent

    @property
    def received_bytes(self) -> int:
        """All that came out of the sockets; any thread may read it."""
        return self.traffic.received

    @property
    def refused_messages(self) -> int:
        """What came and could not be used, refusals of sync nodes among it."""
        return sum(line.refused_messages for line in self._lines)

    @property
    def reference_bytes(self) -> int:
        """Memory of the references; any thread may read it."""
        return sum(reference.memory_bytes for reference in self._references.values())

    def metrics(self) -> dict[str, int]:
        """Counts of this link, to be summed over a trainer's links; any thread may read them."""
        own = {"reference_bytes": self.reference_bytes, "answered_slices": self._answered_slices}
        ends = {f"to/{line.member.name}": line.sent_bytes for line in self._lines}
        ends |= {f"from/{line.member.name}": line.received_bytes for line in self._lines}
        return self.traffic.metrics("center") | own | ends

    async def exchange(self, part: Slice, values: torch.Tensor) -> torch.Tensor:
        """See `Center.exchange`. `values` must not be changed until this returns or raises; one exchange of
        a slice at a time."""
        line, reference = self._line(part), self._references[part]
        if values.dtype != torch.float32 or values.shape != (len(part),) or not values.is_contiguous():
            raise ValueError(
                f"{values.dtype} of shape {tuple(values.shape)} given; "
                f"contiguous float32 [{len(part)}] is sent"
            )
        array = values.numpy()
        answer = self._answers.take(len(part))
        number = self._number()
        ready: dict[int, CenterExchange] = {}

        def chunk(start: int, stop: int) -> CenterExchange:
            # Encoding moves the reference, so a chunk that is sent again must be the one that was encoded.
            if start not in ready:
                at = start - part.start
                version, encoded = reference.encode(at, array[at : at + stop - start])
                ready[start] = CenterExchange(number, start, stop - start, version, encoded.payload)
            return ready[start]

        reference.begin()
        await line.request(number, chunk, answer)
        reference.complete(number)
        self._answered_slices += 1
        return torch.from_numpy(answer)

    async def read(self, part: Slice) -> torch.Tensor:
        """The center's slice as it is now, float32 [len(part)]; raises PeerLost."""
        answer = np.empty(len(part), dtype=np.float32)
        number = self._number()
        await self._line(part).request(number, lambda a, b: CenterRead(number, a, b), answer)
        return torch.from_numpy(answer)

    async def read_all(self) -> torch.Tensor:
        """The whole center, float32 [numel]; raises PeerLost if any slice cannot be read."""
        return torch.cat(list(await asyncio.gather(*(self.read(line.part) for line in self._lines))))

    async def seed(self, flat: torch.Tensor) -> None:
        """Gives every sync node its slice and first value; raises PeerLost."""
        # Frames leave without a copy, perhaps after this returned: a repeat may still be queued then.
        array = flat.numpy().copy()

        async def one(line: CenterLine) -> None:
            number, part = self._number(), line.part

            def chunk(start: int, stop: int) -> CenterSeed:
                return CenterSeed(number, part.start, part.stop, start, array[start:stop])

            await line.request(number, chunk, None)

        await asyncio.gather(*(one(line) for line in self._lines))

    def lose(self, token: str) -> None:
        """The node with this token is gone: what waits for it ends with PeerLost, as will later requests."""
        for line in self._lines:
            if line.member.token == token:
                line.lose()

    async def close(self) -> None:
        """Ends the receiving tasks and closes the sockets."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for line in self._lines:
            line.socket.close()

    def _line(self, part: Slice) -> CenterLine:
        return next(line for line in self._lines if line.part == part)

    def _number(self) -> int:
        number, self._next_request = self._next_request, self._next_request + 1
        return number
