"""A trainer thread's session with a sync node."""

from __future__ import annotations

from ...pipeline.codecs.feedback import Deltas, Encoded, ErrorFeedback, Reference
from ...pipeline.codecs.formats import LinkCodecs
from ...pipeline.types import Float32Array, is_finite
from ...pipeline.wire.buffers import BufferPool
from ...pipeline.wire.center_messages import CenterExchange, CenterValues


class ExchangeSession:
    """A trainer thread's session: current exchange, answer to the last one.

    Chunks are copied into a buffer of the slice's length, which the answer then overwrites, or releases. With
    a lossy codec up, they are copied into the reference instead. With a lossy codec down, the session has a
    residual of its own.

    With `deltas` it is the other way round: what comes are deltas, which are copied into the buffer, and the
    answers are the center's values, with a reference.

    Args:
        start: the position of the slice's first element in the model.
        elements: the slice's length.
        codecs: the codecs of the job's exchanges.
        buffers: the pool that the buffer comes from.
    """

    def __init__(
        self, start: int, elements: int, codecs: LinkCodecs, buffers: BufferPool, *, deltas: bool
    ) -> None:
        self.request = 0
        self._start = start
        self._elements = elements
        self._reference = Deltas(codecs.up, elements) if deltas else Reference(codecs.up, elements)
        self._answers = Reference(codecs.down, elements) if deltas else ErrorFeedback(codecs.down, elements)
        self._buffers = buffers
        self._buffer: Float32Array | None = None
        self._arrived: dict[int, int] = {}
        self._missing = elements
        self._replies: dict[int, CenterValues] = {}

    @property
    def replied(self) -> bool:
        """Whether the last exchange was applied, and its answer is saved."""
        return bool(self._replies)

    @property
    def is_complete(self) -> bool:
        """Whether all elements of the current exchange have arrived."""
        return self._missing == 0

    @property
    def reference_bytes(self) -> int:
        """Memory of the codecs in bytes: a reference and a residual, if the codecs are lossy."""
        return self._reference.memory_bytes + self._answers.memory_bytes

    def begin(self, request: int) -> None:
        """Begin a new exchange, which replaces the last one."""
        self.request = request
        self._arrived = {}
        self._missing = self._elements
        self._replies = {}
        self._reference.begin()
        # ZeroMQ may still read the old buffer; the pool gives it out again when it is free.
        self._buffer = None

    def buffer(self) -> Float32Array:
        """Return this session's buffer, taken from the pool on first use."""
        if self._buffer is None:
            self._buffer = self._buffers.take(self._elements)
        return self._buffer

    def repeat(self, message: CenterExchange) -> CenterValues:
        """Return the saved answer to a chunk.

        Raises ValueError if the exchange had no such chunk.
        """
        self._offset_of(message)
        reply = self._replies.get(message.start)
        if reply is None or reply.elements != message.elements:
            raise ValueError(f"the exchange had no chunk of {message.elements} elements from {message.start}")
        return reply

    def place(self, message: CenterExchange) -> None:
        """Accept a chunk; a repeat changes nothing. Raises ValueError for an invalid one."""
        offset = self._offset_of(message)
        if has_arrived(self._arrived, message.start, message.elements):
            return
        values = self._reference.decode(offset, message.reference, message.payload, message.elements)
        require_finite(values, message.start)
        target = self.values()
        target[offset : offset + message.elements] = values
        self._arrived[message.start] = message.elements
        self._missing -= message.elements

    def values(self) -> Float32Array:
        """Return the received slice, not copied."""
        reference = self._reference
        if isinstance(reference, Reference) and reference.is_enabled:
            return reference.values
        return self.buffer()

    def reply(self, answer: Float32Array) -> list[CenterValues]:
        """Save and return the messages that answer an applied exchange.

        `answer` must not change while it is saved.
        """
        self._answers.begin()
        for start, size in sorted(self._arrived.items()):
            offset = start - self._start
            encoded = self._encode(offset, answer[offset : offset + size])
            self._replies[start] = CenterValues(self.request, start, size, encoded.coded, encoded.payload)
        self._answers.complete(self.request)
        self._reference.complete(self.request)
        return list(self._replies.values())

    def release(self, *, is_answer: bool) -> None:
        """Release the buffer if the answer does not need it.

        `is_answer` says whether the answer was made in the buffer.
        """
        if self._answers.is_enabled or not is_answer:
            self._buffer = None

    def _encode(self, offset: int, values: Float32Array) -> Encoded:
        if isinstance(self._answers, ErrorFeedback):
            return self._answers.encode(offset, values)
        return self._answers.encode(offset, values)[1]

    def _offset_of(self, message: CenterExchange) -> int:
        offset = message.start - self._start
        if offset < 0 or message.elements <= 0 or offset + message.elements > self._elements:
            raise ValueError(
                f"{message.elements} elements from {message.start} are outside the slice "
                f"{self._start} to {self._start + self._elements}"
            )
        return offset


def has_arrived(arrived: dict[int, int], start: int, elements: int) -> bool:
    """Return whether exactly this chunk has arrived.

    Raises ValueError if it overlaps another.
    """
    if arrived.get(start) == elements:
        return True
    stop = start + elements
    if any(other < stop and start < other + size for other, size in arrived.items()):
        raise ValueError(f"{elements} elements from {start} overlap an earlier chunk")
    return False


def require_finite(values: Float32Array, start: int) -> None:
    """Raise ValueError for values that are not finite."""
    if not is_finite(values):
        raise ValueError(
            f"the {len(values)} elements from {start} are not all finite: the replica has diverged"
        )
