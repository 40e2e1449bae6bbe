"""A sync node's slice of the center as a state machine without I/O (contracts 6 and 9).

Chunks of an exchange come in, in any order and perhaps more than once; when a slice is whole, the
algorithm's rule is applied to it at once, and the answer is remembered until the same trainer thread
begins its next exchange, so that a repeated chunk is answered again and never applied again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ...pipeline.codecs.float32 import Float32
from ...pipeline.codecs.registry import LinkCodecs
from ...pipeline.types import Float32Array
from ...pipeline.wire.buffers import BufferPool, bytes_of
from ...pipeline.wire.messages import CenterExchange, CenterRead, CenterSeed, CenterValues
from .center_client import CenterClient

Rule = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# A part of this length and the rule's own tensors fit into a core's cache.
RULE_ELEMENTS = 1 << 15

_PLAIN = Float32()


class CenterState:
    """One slice of the center; owned by the sync node's service.

    Args:
        rule: the algorithm's `center_rule`.
        codecs: those of the job's link to the center.

    Attributes:
        reference_bytes: what lossy codecs need, over all clients; any thread may read it.
    """

    def __init__(self, rule: Rule, codecs: LinkCodecs | None = None) -> None:
        self._rule = rule
        self._codecs = codecs or LinkCodecs()
        self.start = 0
        self.stop = 0
        self.values: torch.Tensor | None = None
        self._seeded: dict[int, int] = {}
        self._seed: Float32Array | None = None
        self._clients: dict[bytes, CenterClient] = {}
        self._gone: set[bytes] = set()
        self._buffers = BufferPool(0)
        self.applied_slices = 0
        self.repeated_chunks = 0
        self.abandoned_exchanges = 0
        self.reference_bytes = 0

    @property
    def ready(self) -> bool:
        """Whether the slice has its first value."""
        return self.values is not None

    @property
    def memory_bytes(self) -> int:
        """Bytes of the slice, of what is staged, and of what is remembered."""
        own = self.values.numel() * 4 if self.values is not None else 0
        return own + self._buffers.idle_bytes + sum(client.memory_bytes for client in self._clients.values())

    def seed(self, message: CenterSeed) -> CenterValues:
        """A chunk of the first value; repeats and chunks after the last change nothing."""
        if self.values is None:
            if self._seed is None:
                if not 0 <= message.slice_start < message.slice_stop:
                    raise ValueError(f"a slice from {message.slice_start} to {message.slice_stop}")
                self._seed = _empty(message.slice_stop - message.slice_start)
                self.start, self.stop = message.slice_start, message.slice_stop
                # One goes from client to client; another is still leaving then.
                self._buffers = BufferPool(bytes_of(len(self._seed), arrays=2))
            elif (message.slice_start, message.slice_stop) != (self.start, self.stop):
                raise ValueError(f"another slice than {self.start} to {self.stop}")
            self._place(self._seed, self._seeded, message.start, message.values)
            if sum(self._seeded.values()) == len(self._seed):
                self.values = torch.from_numpy(self._seed)
                self._seeded = {}
        return CenterValues(message.request, message.start, 0, False, np.empty(0, dtype=np.uint8))

    def exchange(self, client: bytes, message: CenterExchange) -> list[CenterValues]:
        """A chunk of a replica; gives the chunks to answer now, if any."""
        center = self._require_center()
        current = self._clients.get(client)
        if client.rpartition(b"/")[0] in self._gone:
            raise ValueError("this trainer was declared dead")
        if current is None:
            current = self._clients[client] = CenterClient(
                self.start, center.numel(), self._codecs, self._buffers
            )
            self.reference_bytes += current.reference_bytes
        if message.request < current.request:
            return []
        if message.request > current.request:
            if current.request and not current.answered:
                self.abandoned_exchanges += 1
            current.begin(message.request)
        if current.answered:
            self.repeated_chunks += 1
            return [current.repeat(message)]
        current.place(message)
        if not current.whole:
            return []
        answer = current.buffer()
        self._apply(center, current.values(), answer)
        answers = current.answer(answer)
        current.release()
        return answers

    def read(self, message: CenterRead) -> CenterValues:
        """The center's values as they are now, a copy."""
        center = self._require_center().numpy()
        if not self.start <= message.start < message.stop <= self.stop:
            raise ValueError(
                f"elements {message.start} to {message.stop} are not of {self.start} to {self.stop}"
            )
        values = center[message.start - self.start : message.stop - self.start].copy()
        return CenterValues(message.request, message.start, len(values), False, _PLAIN.encode(values))

    def copied(self) -> Float32Array | None:
        """A copy of the slice as it is now; None before its first value."""
        return None if self.values is None else self.values.numpy().copy()

    def forget(self, token: str) -> int:
        """Forgets a dead trainer's threads, and takes nothing from it any more, should it not know; gives how
        many slices were applied for it without its knowing, at most: those whose answer nothing followed."""
        self._gone.add(token.encode())
        prefix = f"{token}/".encode()
        mine = [self._clients.pop(client) for client in list(self._clients) if client.startswith(prefix)]
        self.reference_bytes -= sum(client.reference_bytes for client in mine)
        return sum(client.answered for client in mine)

    def _require_center(self) -> torch.Tensor:
        if self.values is None:
            raise ValueError("the center has no first value yet")
        return self.values

    def _apply(self, center: torch.Tensor, values: Float32Array, answer: Float32Array) -> None:
        """The rule over the whole slice, its answer in `answer`, which may be `values` itself.

        Part by part: what is between the rule's steps stays in the cache, and nothing of the slice's length
        is allocated, which would cost a page fault every 4 KiB.
        """
        given, taken = torch.from_numpy(values), torch.from_numpy(answer)
        for at in range(0, len(values), RULE_ELEMENTS):
            part = slice(at, at + RULE_ELEMENTS)
            taken[part] = self._rule(center[part], given[part])
        self.applied_slices += 1

    def _place(self, target: Float32Array, arrived: dict[int, int], start: int, values: Float32Array) -> int:
        """Copies a chunk that has not arrived yet; gives how many elements are new."""
        at = start - self.start
        if at < 0 or len(values) == 0 or at + len(values) > len(target):
            raise ValueError(
                f"{len(values)} elements from {start} are not of the slice {self.start} to {self.stop}"
            )
        if arrived.get(start) == len(values):
            return 0
        stop = start + len(values)
        if any(other < stop and start < other + size for other, size in arrived.items()):
            raise ValueError(f"{len(values)} elements from {start} overlap what came before")
        target[at : at + len(values)] = values
        arrived[start] = len(values)
        return len(values)


def _empty(elements: int) -> Float32Array:
    try:
        return np.empty(elements, dtype=np.float32)
    except (MemoryError, ValueError) as error:
        raise ValueError(f"a slice of {elements} elements does not fit into memory") from error
