"""One trainer thread as a sync node sees it: the exchange under way, and the answer to the last one."""

from __future__ import annotations

from ...pipeline.codecs.feedback import ErrorFeedback
from ...pipeline.codecs.reference import Reference
from ...pipeline.codecs.registry import LinkCodecs
from ...pipeline.types import Float32Array
from ...pipeline.wire.buffers import BufferPool
from ...pipeline.wire.messages import CenterExchange, CenterValues


class CenterClient:
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
        target = self._reference.values if self._reference.kept else self.buffer()
        target[at : at + message.elements] = values
        self._arrived[start] = message.elements
        self._missing -= message.elements

    def values(self) -> Float32Array:
        """The whole slice as it came, not copied."""
        return self._reference.values if self._reference.kept else self.buffer()

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
