"""A sync node's slice of the center: a state machine without I/O.

Chunks of an exchange arrive in any order, perhaps more than once. When the slice is complete, the algorithm's
rule is applied at once. The answer is saved until the same trainer thread begins its next exchange, so that a
repeated chunk is answered again and never applied twice.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ...pipeline.codecs.feedback import ErrorFeedback, Reference
from ...pipeline.codecs.formats import Codec, Float32, LinkCodecs
from ...pipeline.codecs.ladder import CodecLadder
from ...pipeline.finite import is_finite
from ...pipeline.types import Float32Array
from ...pipeline.wire.buffers import BufferPool, bytes_of
from ...pipeline.wire.messages import (
    CenterExchange,
    CenterNamedExchange,
    CenterRead,
    CenterSeed,
    CenterValues,
)

Rule = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# A part of this length and the rule's temporary tensors fit into a core's cache.
RULE_ELEMENTS = 1 << 15

_PLAIN = Float32()


class ExchangeSession:
    """One trainer thread's session: its current exchange and the answer to its last one.

    Chunks are copied into a buffer of the slice's length, which the answer then overwrites. With a lossy
    codec up, they are copied into the reference instead. With a lossy codec down, the session has a residual
    of its own.

    Where exchanges name their codecs, each also says which answer arrived last: what an answer owes is not
    owed if it never did.

    Args:
        start: the position of the slice's first element in the model.
        elements: the slice's length.
        codecs: the codecs of the job's exchanges; of the first one, where exchanges name theirs.
        buffers: the pool that the buffer comes from.
    """

    def __init__(self, start: int, elements: int, codecs: LinkCodecs, buffers: BufferPool) -> None:
        self.request = 0
        self._named: str | None = None
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
        """Whether the last exchange was applied, and its answer is saved."""
        return bool(self._answers)

    @property
    def is_complete(self) -> bool:
        """Whether all elements of the current exchange have arrived."""
        return self._missing == 0

    @property
    def reference_bytes(self) -> int:
        """Memory of the codecs in bytes: the reference up and the residual down."""
        return self._reference.memory_bytes + self._feedback.memory_bytes

    @property
    def memory_bytes(self) -> int:
        """Memory of this session, in bytes."""
        slice_bytes = self._buffer.nbytes if self._buffer is not None else 0
        enabled = self._feedback.is_enabled
        coded = sum(one.payload.nbytes for one in self._answers.values() if one.coded and enabled)
        return self.reference_bytes + slice_bytes + coded

    def begin(self, message: CenterExchange, codec: Codec | None) -> None:
        """Begin a new exchange with its first chunk, which replaces the last one.

        `codec` is the one that it names, None where it names none.
        """
        if isinstance(message, CenterNamedExchange) and codec is not None:
            self._named = message.codec
            if message.answered == self.request:
                self._feedback.commit()
            self._feedback.discard()
            self._feedback.change(codec)
        self.request = message.request
        self._arrived = {}
        self._missing = self._elements
        self._answers = {}
        self._reference.begin(codec)
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
        answer = self._answers.get(message.start)
        if answer is None or answer.elements != message.elements:
            raise ValueError(f"the exchange had no chunk of {message.elements} elements from {message.start}")
        return answer

    def place(self, message: CenterExchange) -> None:
        """Accept a chunk; a repeat changes nothing. Raises ValueError for an invalid one."""
        at = self._offset_of(message)
        if _has_arrived(self._arrived, message.start, message.elements):
            return
        if isinstance(message, CenterNamedExchange) and message.codec != self._named:
            raise ValueError(
                f"codec {message.codec!r:.40} named; the exchange was begun by {self._named!r:.40}"
            )
        values = self._reference.decode(at, message.reference, message.payload, message.elements)
        _require_finite(values, message.start)
        target = self._reference.values if self._reference.is_enabled else self.buffer()
        target[at : at + message.elements] = values
        self._arrived[message.start] = message.elements
        self._missing -= message.elements

    def values(self) -> Float32Array:
        """Return the received slice, not copied."""
        return self._reference.values if self._reference.is_enabled else self.buffer()

    def answer(self, delta: Float32Array) -> list[CenterValues]:
        """Save and return the messages that answer an applied exchange.

        `delta` is the answer, in the session's buffer.
        """
        for start, size in sorted(self._arrived.items()):
            at = start - self._start
            encoded = self._feedback.encode(at, delta[at : at + size])
            self._answers[start] = CenterValues(self.request, start, size, encoded.coded, encoded.payload)
        if self._named is None:
            self._feedback.commit()
        self._reference.complete(self.request)
        return list(self._answers.values())

    def release(self) -> None:
        """Release the buffer if the answer does not need it any more."""
        if self._feedback.is_enabled:
            self._buffer = None

    def _offset_of(self, message: CenterExchange) -> int:
        at = message.start - self._start
        if at < 0 or message.elements <= 0 or at + message.elements > self._elements:
            raise ValueError(
                f"{message.elements} elements from {message.start} are outside the slice "
                f"{self._start} to {self._start + self._elements}"
            )
        return at


class CenterState:
    """One slice of the center; it belongs to the sync node's service thread.

    Args:
        rule: the algorithm's `center_rule`.
        codecs: the codecs of the job's exchanges; a ladder where each exchange names its own.

    Attributes:
        reference_bytes: memory of lossy codecs over all sessions; any thread may read it.
    """

    def __init__(self, rule: Rule, codecs: LinkCodecs | CodecLadder | None = None) -> None:
        self._rule = rule
        self._ladder = codecs if isinstance(codecs, CodecLadder) else None
        self._codecs = codecs if isinstance(codecs, LinkCodecs) else LinkCodecs()
        self.start = 0
        self.stop = 0
        self.values: torch.Tensor | None = None
        self._seeded: dict[int, int] = {}
        self._seed: Float32Array | None = None
        self._sessions: dict[bytes, ExchangeSession] = {}
        self._dead_trainers: set[bytes] = set()
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
        """Memory in bytes: the slice, received chunks and saved answers."""
        slice_bytes = self.values.numel() * 4 if self.values is not None else 0
        return (
            slice_bytes
            + self._buffers.idle_bytes
            + sum(session.memory_bytes for session in self._sessions.values())
        )

    def seed(self, message: CenterSeed) -> CenterValues:
        """Accept a chunk of the first value; repeats and later chunks change nothing."""
        if self.values is None:
            if self._seed is None:
                if not 0 <= message.slice_start < message.slice_stop:
                    raise ValueError(f"invalid slice from {message.slice_start} to {message.slice_stop}")
                self._seed = _empty(message.slice_stop - message.slice_start)
                self.start, self.stop = message.slice_start, message.slice_stop
                # One is in use by a session while another is still being sent.
                self._buffers = BufferPool(bytes_of(len(self._seed), arrays=2))
            elif (message.slice_start, message.slice_stop) != (self.start, self.stop):
                raise ValueError(f"the slice differs from {self.start} to {self.stop}")
            self._place(self._seed, self._seeded, message.start, message.values)
            if sum(self._seeded.values()) == len(self._seed):
                self.values = torch.from_numpy(self._seed)
                self._seeded = {}
        return CenterValues(message.request, message.start, 0, False, np.empty(0, dtype=np.uint8))

    def exchange(self, identity: bytes, message: CenterExchange) -> list[CenterValues]:
        """Accept a chunk of a replica; return the chunks to answer now, if any."""
        center = self._require_center()
        codec = self._codec_of(message)
        session = self._sessions.get(identity)
        if identity.rpartition(b"/")[0] in self._dead_trainers:
            raise ValueError("this trainer was declared dead")
        if session is None:
            session = self._sessions[identity] = ExchangeSession(
                self.start, center.numel(), self._codecs, self._buffers
            )
            self.reference_bytes += session.reference_bytes
        if message.request < session.request:
            return []
        held = session.reference_bytes
        try:
            return self._exchange(session, center, message, codec)
        finally:
            self.reference_bytes += session.reference_bytes - held

    def _exchange(
        self, session: ExchangeSession, center: torch.Tensor, message: CenterExchange, codec: Codec | None
    ) -> list[CenterValues]:
        if message.request > session.request:
            if session.request and not session.answered:
                self.abandoned_exchanges += 1
            session.begin(message, codec)
        if session.answered:
            self.repeated_chunks += 1
            return [session.repeat(message)]
        session.place(message)
        if not session.is_complete:
            return []
        answer = session.buffer()
        self._apply(center, session.values(), answer)
        answers = session.answer(answer)
        session.release()
        return answers

    def read(self, message: CenterRead) -> CenterValues:
        """Return a copy of the center's values as they are now."""
        center = self._require_center().numpy()
        if not self.start <= message.start < message.stop <= self.stop:
            raise ValueError(
                f"elements {message.start} to {message.stop} are outside {self.start} to {self.stop}"
            )
        values = center[message.start - self.start : message.stop - self.start].copy()
        return CenterValues(message.request, message.start, len(values), False, _PLAIN.encode(values))

    def copy_values(self) -> Float32Array | None:
        """Return a copy of the slice as it is now.

        None before its first value.
        """
        return None if self.values is None else self.values.numpy().copy()

    def forget(self, token: str) -> int:
        """End a dead trainer's sessions, and refuse its later messages.

        Returns the most slices that were applied without the trainer's knowledge: those whose answer was
        not followed by another request.
        """
        self._dead_trainers.add(token.encode())
        prefix = f"{token}/".encode()
        ended = [
            self._sessions.pop(identity) for identity in list(self._sessions) if identity.startswith(prefix)
        ]
        self.reference_bytes -= sum(session.reference_bytes for session in ended)
        return sum(session.answered for session in ended)

    def _codec_of(self, message: CenterExchange) -> Codec | None:
        """Return the codec that an exchange names; None where codecs are the job's.

        Raises ValueError for a codec that may not be named, and for an exchange without one that must have.
        """
        if not isinstance(message, CenterNamedExchange):
            if self._ladder is not None:
                raise ValueError("no codec named; the job has that of this link chosen for each exchange")
            return None
        if self._ladder is None:
            raise ValueError(f"codec {message.codec!r:.40} named; the job's codecs of this link are fixed")
        return self._ladder.codec(message.codec)

    def _require_center(self) -> torch.Tensor:
        if self.values is None:
            raise ValueError("the center has no first value yet")
        return self.values

    def _apply(self, center: torch.Tensor, values: Float32Array, answer: Float32Array) -> None:
        """Apply the rule to the whole slice.

        Its answer goes to `answer`, which may be `values` itself.

        This is done part by part: the rule's temporary tensors stay in the cache, and nothing of the slice's
        length is allocated, which would cost a page fault every 4 KiB.
        """
        given, taken = torch.from_numpy(values), torch.from_numpy(answer)
        for at in range(0, len(values), RULE_ELEMENTS):
            part = slice(at, at + RULE_ELEMENTS)
            taken[part] = self._rule(center[part], given[part])
        self.applied_slices += 1

    def _place(self, target: Float32Array, arrived: dict[int, int], start: int, values: Float32Array) -> None:
        """Copy a chunk of the first value that has not arrived yet."""
        at = start - self.start
        if at < 0 or len(values) == 0 or at + len(values) > len(target):
            raise ValueError(
                f"{len(values)} elements from {start} are outside the slice {self.start} to {self.stop}"
            )
        if _has_arrived(arrived, start, len(values)):
            return
        _require_finite(values, start)
        target[at : at + len(values)] = values
        arrived[start] = len(values)


def _has_arrived(arrived: dict[int, int], start: int, elements: int) -> bool:
    """Whether exactly this chunk has arrived; raises ValueError if it overlaps another."""
    if arrived.get(start) == elements:
        return True
    stop = start + elements
    if any(other < stop and start < other + size for other, size in arrived.items()):
        raise ValueError(f"{elements} elements from {start} overlap an earlier chunk")
    return False


def _require_finite(values: Float32Array, start: int) -> None:
    """Raise ValueError for values that would make the center, and then every replica, worth nothing."""
    if not is_finite(values):
        raise ValueError(
            f"the {len(values)} elements from {start} are not all finite: the replica has diverged"
        )


def _empty(elements: int) -> Float32Array:
    try:
        return np.empty(elements, dtype=np.float32)
    except (MemoryError, ValueError) as error:
        raise ValueError(f"a slice of {elements} elements does not fit into memory") from error
