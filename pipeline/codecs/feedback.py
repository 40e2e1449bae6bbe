"""Error feedback without I/O: what a lossy codec loses is kept, and sent with what comes next.

The values that both ends of a link hold: a lossy codec sends how far the next ones are from them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..types import Float32Array
from .formats import Codec, CodecError, Float32, Payload

_PLAIN = Float32()


@dataclass(frozen=True, slots=True)
class Encoded:
    """One chunk as it travels. `coded`: by the link's codec, else as float32.

    `decoded` is what the other end makes of it, bit by bit.
    """

    payload: Payload
    coded: bool
    decoded: Float32Array


def encode_chunk(codec: Codec, values: Float32Array) -> Encoded:
    """A chunk by `codec`, or as float32 if it holds an infinity or a NaN, or would come back with one.

    So a replica that diverged arrives as it is, and no codec spreads a NaN over its neighbours.
    """
    if not codec.lossy or not _finite(values):
        return Encoded(_PLAIN.encode(values), not codec.lossy, values)
    payload = codec.encode(values)
    decoded = codec.decode(payload, len(values))
    if not _finite(decoded):
        return Encoded(_PLAIN.encode(values), False, values)
    return Encoded(payload, True, decoded)


def decode_chunk(codec: Codec, payload: Payload, elements: int, *, coded: bool) -> Float32Array:
    """The values of a chunk; raises CodecError for a payload that is not what `encode_chunk` wrote.

    What a codec wrote is finite: a hostile NaN would stay in the reference for ever.
    """
    values = (codec if coded else _PLAIN).decode(payload, elements)
    if coded and codec.lossy and not _finite(values):
        raise CodecError(f"{codec.name}: values that are not finite")
    return values


class ErrorFeedback:
    """The residual of a stretch of values that is encoded again and again, chunk by chunk.

    `encode` adds what earlier encodings lost and stages what this one loses; `commit` makes it count, so
    that until then a repeat gives the same bytes, and `discard` takes it back. One thread's. A lossless
    codec needs no residual, and none is kept.
    """

    def __init__(self, codec: Codec, elements: int) -> None:
        self._codec = codec
        self._residual = np.zeros(elements if codec.lossy else 0, dtype=np.float32)
        self._staged: dict[int, Float32Array] = {}

    @property
    def memory_bytes(self) -> int:
        """Bytes of the residual, and of what is staged."""
        return self._residual.nbytes + sum(part.nbytes for part in self._staged.values())

    def encode(self, start: int, values: Float32Array) -> Encoded:
        """The chunk of the stretch from element `start` on, float32 [n]."""
        if not self._codec.lossy:
            return encode_chunk(self._codec, values)
        with np.errstate(over="ignore", invalid="ignore"):
            owed = values + self._residual[start : start + len(values)]
        encoded = encode_chunk(self._codec, owed)
        if encoded.coded:
            np.subtract(owed, encoded.decoded, out=owed)
            self._staged[start] = owed
        else:
            # It travelled as it is: nothing of it is owed any more.
            self._staged[start] = np.zeros(len(values), dtype=np.float32)
        return encoded

    def commit(self) -> None:
        """What was encoded since the last `commit` or `discard` has been, or will be, decoded over there."""
        for start, part in self._staged.items():
            self._residual[start : start + len(part)] = part
        self._staged.clear()

    def discard(self) -> None:
        """What was encoded since the last `commit` or `discard` never counted."""
        self._staged.clear()


def _finite(values: Float32Array) -> bool:
    return bool(np.isfinite(values).all())


NO_REFERENCE = 0


class Reference:
    """One end's copy of what was decoded last of a stretch of values; both ends move it alike.

    The next difference from it contains what the last encoding lost, so that errors are fed back by
    themselves. `version` is the number (from 1) of the exchange that it holds, NO_REFERENCE while one is
    under way and after one that failed: the next one then travels as float32 and starts it anew. A lossless
    codec needs no reference, and none is kept.
    """

    def __init__(self, codec: Codec, elements: int) -> None:
        self._codec = codec
        self._base = NO_REFERENCE
        self.version = NO_REFERENCE
        self.values = np.empty(elements if codec.lossy else 0, dtype=np.float32)
        self._difference = np.empty(0, dtype=np.float32)

    @property
    def kept(self) -> bool:
        """Whether there is a reference: a lossless codec has none."""
        return self._codec.lossy

    @property
    def memory_bytes(self) -> int:
        """Bytes of the reference, and of one chunk to work with."""
        return self.values.nbytes + self._difference.nbytes

    def begin(self) -> None:
        """An exchange starts; one that had started before failed."""
        self._base, self.version = self.version, NO_REFERENCE

    def complete(self, number: int) -> None:
        """The exchange `number` that was begun is whole: this is what the next one refers to."""
        self.version = number if self._codec.lossy else NO_REFERENCE

    def encode(self, start: int, values: Float32Array) -> tuple[int, Encoded]:
        """A chunk, and the version that it refers to; moves the reference, so call it once a chunk."""
        if not self._codec.lossy:
            return NO_REFERENCE, encode_chunk(self._codec, values)
        held = self.values[start : start + len(values)]
        if self._base != NO_REFERENCE:
            if len(self._difference) < len(values):
                self._difference = np.empty(len(values), dtype=np.float32)
            with np.errstate(over="ignore", invalid="ignore"):
                difference = np.subtract(values, held, out=self._difference[: len(values)])
            encoded = encode_chunk(self._codec, difference)
            if encoded.coded:
                np.add(held, encoded.decoded, out=held)
                return self._base, encoded
        held[:] = values
        return NO_REFERENCE, encode_chunk(Float32(), values)

    def decode(self, start: int, version: int, payload: Payload, elements: int) -> Float32Array:
        """A chunk's values; does not move the reference: whoever places them in `values` does.

        Raises:
            CodecError: it refers to what this end does not hold, or the payload is not of the codec.
        """
        if version == NO_REFERENCE:
            return decode_chunk(self._codec, payload, elements, coded=False)
        if version != self._base:
            raise CodecError(f"refers to exchange {version}, but exchange {self._base} is held")
        difference = decode_chunk(self._codec, payload, elements, coded=True)
        with np.errstate(over="ignore", invalid="ignore"):
            np.add(self.values[start : start + elements], difference, out=difference)
        return difference
