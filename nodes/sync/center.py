"""A sync node's slice of the center as a state machine without I/O (contracts 6 and 9).

Chunks of an exchange come in, in any order and perhaps more than once; when a slice is whole, the
algorithm's rule is applied to it at once, and the answer is remembered until the same trainer thread
begins its next exchange, so that a repeated chunk is answered again and never applied again.

One trainer thread as a sync node sees it: the exchange under way, and the answer to the last one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ...pipeline.codecs.feedback import ErrorFeedback, Reference
from ...pipeline.codecs.formats import Float32, LinkCodecs
from ...pipeline.types import Float32Array
from ...pipeline.wire.buffers import BufferPool, bytes_of
from ...pipeline.wire.messages import CenterExchange, CenterRead, CenterSeed, CenterValues


class ExchangeSession:
    """Chunks come in, in any order and perhaps more than once, until the slice is whole; no I/O.

    Chunks are placed in a buffer of the slice's length, and the answer then takes their place in it. With a
    lossy codec up, the reference is where they are placed. With a lossy codec down, a residual is kept that
    belongs to this client alone.

    Args:
        start: the place of the slice's first element in the model.
        elements: the slice's length.
        buffers: where the buffer comes from.
    """

    def __init__(self, start: int, elements: int, codecs: LinkCodecs, buffers: BufferPool) -> None:
        self.request = 0
        self._down_lossy = codecs.down.lossy
        self._start = start
        self._elements = elements
        self._reference = Reference(codecs.up, elements)
        self._feedback = ErrorFeedback(codecs.down, elements)
        self._buffers = buffers
        self._buffer: Float32Array | None = None
        self._arrived: dict[int, int] = {}
        self._missing = elements
        self._answers: dict[int, CenterValues] = {}

    @property
    def answered(self) -> bool:
        """Whether the last exchange was applied, and its answer is remembered."""
        return bool(self._answers)

    @property
    def whole(self) -> bool:
        """Whether all elements of the exchange under way have come."""
        return self._missing == 0

    @property
    def reference_bytes(self) -> int:
        """Bytes that the codecs need: the reference up, the residual down."""
        return self._reference.memory_bytes + self._feedback.memory_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes of all that is kept for this client."""
        own = self._buffer.nbytes if self._buffer is not None else 0
        coded = sum(one.payload.nbytes for one in self._answers.values() if one.coded and self._down_lossy)
        return self.reference_bytes + own + coded

    def begin(self, request: int) -> None:
        """A new exchange, in the place of the last one."""
        self.request = request
        self._arrived = {}
        self._missing = self._elements
        self._answers = {}
        self._reference.begin()
        # ZeroMQ may still read it: not this client's to write before the pool says so.
        self._buffer = None

    def buffer(self) -> Float32Array:
        """The buffer of this client."""
        if self._buffer is None:
            self._buffer = self._buffers.take(self._elements)
        return self._buffer

    def repeat(self, message: CenterExchange) -> CenterValues:
        """The remembered answer to a chunk; raises ValueError if that was no chunk of the exchange."""
        self._place_of(message)
        answer = self._answers.get(message.start)
        if answer is None or answer.elements != message.elements:
            raise ValueError(
                f"{message.elements} elements from {message.start} were no chunk of the exchange"
            )
        return answer

    def place(self, message: CenterExchange) -> None:
        """Takes a chunk that has not come yet; raises ValueError for one that cannot be taken."""
        at = self._place_of(message)
        start, stop = message.start, message.start + message.elements
        if self._arrived.get(start) == message.elements:
            return
        if any(other < stop and start < other + size for other, size in self._arrived.items()):
            raise ValueError(f"{message.elements} elements from {start} overlap what came before")
        values = self._reference.decode(at, message.reference, message.payload, message.elements)
        target = self._reference.values if self._reference.is_enabled else self.buffer()
        target[at : at + message.elements] = values
        self._arrived[start] = message.elements
        self._missing -= message.elements

    def values(self) -> Float32Array:
        """The whole slice as it came, not copied."""
        return self._reference.values if self._reference.is_enabled else self.buffer()

    def answer(self, delta: Float32Array) -> list[CenterValues]:
        """The exchange was applied and this, in the client's buffer, is its answer: the messages, which are
        remembered."""
        for start, size in sorted(self._arrived.items()):
            at = start - self._start
            encoded = self._feedback.encode(at, delta[at : at + size])
            self._answers[start] = CenterValues(self.request, start, size, encoded.coded, encoded.payload)
        self._feedback.commit()
        self._reference.complete(self.request)
        return list(self._answers.values())

    def release(self) -> None:
        """Lets go of the buffer, if the answer does not need it any more."""
        if self._down_lossy:
            self._buffer = None

    def _place_of(self, message: CenterExchange) -> int:
        at = message.start - self._start
        if at < 0 or message.elements <= 0 or at + message.elements > self._elements:
            raise ValueError(
                f"{message.elements} elements from {message.start} are not of the slice "
                f"{self._start} to {self._start + self._elements}"
            )
        return at


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
        self._clients: dict[bytes, ExchangeSession] = {}
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
            current = self._clients[client] = ExchangeSession(
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
