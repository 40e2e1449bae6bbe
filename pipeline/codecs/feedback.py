"""Error feedback of lossy codecs, without I/O.

What an encoding loses is stored, and sent with the next one. It is stored either as a residual at the sender
(`ErrorFeedback`), or in a reference at both ends, from which they send differences (`Reference`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..types import Float32Array, is_finite
from .formats import Codec, CodecError, Float32, Payload

_PLAIN = Float32()

NO_REFERENCE = 0


@dataclass(frozen=True, slots=True)
class Encoded:
    """One chunk as it is sent.

    Attributes:
        coded: whether the codec encoded the chunk; otherwise it is sent as float32.
        decoded: what the other end decodes, to the bit.
    """

    payload: Payload
    coded: bool
    decoded: Float32Array


def encode_chunk(codec: Codec, values: Float32Array) -> Encoded:
    """Encode a chunk by `codec`; as float32 if it is not finite.

    The chunk is encoded as float32 if its values, or the decoded ones, contain an infinity or a NaN. So a
    replica that diverged arrives as it is, and no codec spreads a NaN to neighbouring values.
    """
    if not codec.lossy:
        return Encoded(codec.encode(values), True, values)
    if not is_finite(values):
        return Encoded(_PLAIN.encode(values), False, values)
    payload = codec.encode(values)
    decoded = codec.decode(payload, len(values))
    if not is_finite(decoded):
        return Encoded(_PLAIN.encode(values), False, values)
    return Encoded(payload, True, decoded)


def decode_chunk(codec: Codec, payload: Payload, elements: int, *, coded: bool) -> Float32Array:
    """Return the values of a chunk, float32 [elements].

    Raises CodecError for a payload that `encode_chunk` cannot have written. That includes values of a lossy
    codec that are not finite: a hostile NaN would stay in the reference forever.
    """
    values = (codec if coded else _PLAIN).decode(payload, elements)
    if coded and codec.lossy and not is_finite(values):
        raise CodecError(f"{codec.name}: decoded values are not finite")
    return values


class ErrorFeedback:
    """The residual of values that are encoded repeatedly, chunk by chunk.

    `encode` adds what earlier encodings lost, and stages what it loses itself. `commit` stores the staged
    part and `discard` drops it; until then a repeated `encode` gives the same bytes. After a change from a
    lossy codec to a lossless one, the residual is sent once and is then empty. Used by one thread.
    """

    def __init__(self, codec: Codec, elements: int) -> None:
        self._codec = codec
        self._elements = elements
        self._residual = np.zeros(elements if codec.lossy else 0, dtype=np.float32)
        self._staged: dict[int, Float32Array] = {}

    @property
    def memory_bytes(self) -> int:
        """Bytes of the residual and of what is staged."""
        return self._residual.nbytes + sum(part.nbytes for part in self._staged.values())

    @property
    def is_enabled(self) -> bool:
        """Whether a residual is kept.

        A lossy codec has a residual. After a change to a lossless codec it is kept until it is sent.
        """
        return self._codec.lossy or len(self._residual) > 0

    def change(self, codec: Codec) -> None:
        """Switch the codec, keeping the residual. Nothing may be staged."""
        self._codec = codec
        if codec.lossy and not len(self._residual):
            self._residual = np.zeros(self._elements, dtype=np.float32)

    def encode(self, start: int, values: Float32Array) -> Encoded:
        """Encode the chunk that starts at element `start`, float32 [n]."""
        if not self.is_enabled:
            return encode_chunk(self._codec, values)
        with np.errstate(over="ignore", invalid="ignore"):
            corrected = values + self._residual[start : start + len(values)]
        encoded = encode_chunk(self._codec, corrected)
        if encoded.coded and self._codec.lossy:
            np.subtract(corrected, encoded.decoded, out=corrected)
            self._staged[start] = corrected
        else:
            # The values are sent exactly, so nothing is left over.
            self._staged[start] = np.zeros(len(values), dtype=np.float32)
        return encoded

    def commit(self) -> None:
        """Store what is staged, once the other end has decoded the chunks or will."""
        for start, part in self._staged.items():
            self._residual[start : start + len(part)] = part
        if self._staged and not self._codec.lossy:
            self._residual = np.zeros(0, dtype=np.float32)
        self._staged.clear()

    def discard(self) -> None:
        """Drop what is staged, because the other end will not use the chunks."""
        self._staged.clear()


class Reference:
    """One end's copy of the values decoded last.

    Both ends update their copies alike. The next difference from the copy contains what the last encoding
    lost, so errors are fed back without a residual.

    `version` is the number, from 1, of the exchange whose values are held. It is NO_REFERENCE during an
    exchange and after a failed one; the next exchange is then sent as float32 and starts a new reference. A
    lossless codec has no reference; the first lossy exchange after it starts one. A change between lossy
    codecs keeps the reference, because it has decoded values only.
    """

    def __init__(self, codec: Codec, elements: int) -> None:
        self._codec = codec
        self._elements = elements
        self._base = NO_REFERENCE
        self.version = NO_REFERENCE
        self.values = np.empty(elements if codec.lossy else 0, dtype=np.float32)
        self._difference = np.empty(0, dtype=np.float32)

    @property
    def is_enabled(self) -> bool:
        """Whether there is a reference; a lossless codec has none."""
        return self._codec.lossy

    @property
    def memory_bytes(self) -> int:
        """Bytes of the reference and of the scratch chunk."""
        return self.values.nbytes + self._difference.nbytes

    def begin(self, codec: Codec | None = None) -> None:
        """Start an exchange, with `codec` if given; an unfinished exchange counts as failed."""
        self._base, self.version = self.version, NO_REFERENCE
        if codec is None:
            return
        self._codec = codec
        if codec.lossy != (len(self.values) > 0):
            self.values = np.empty(self._elements if codec.lossy else 0, dtype=np.float32)
            self._difference = np.empty(0, dtype=np.float32)
            self._base = NO_REFERENCE

    def complete(self, number: int) -> None:
        """Finish the exchange `number`: the next one refers to it."""
        self.version = number if self._codec.lossy else NO_REFERENCE

    def encode(self, start: int, values: Float32Array) -> tuple[int, Encoded]:
        """Encode a chunk; return its reference version and the chunk.

        Updates the reference, so call it once for each chunk.
        """
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
        """Return a chunk's values; do not update the reference.

        The caller updates it by placing them in `values`.

        Raises:
            CodecError: the chunk refers to an exchange that this end does not hold, or its payload is not of
                the codec.
        """
        if version == NO_REFERENCE:
            return decode_chunk(self._codec, payload, elements, coded=not self._codec.lossy)
        if version != self._base:
            raise CodecError(
                f"the chunk refers to exchange {version}, but this end holds exchange {self._base}"
            )
        difference = decode_chunk(self._codec, payload, elements, coded=True)
        with np.errstate(over="ignore", invalid="ignore"):
            np.add(self.values[start : start + elements], difference, out=difference)
        return difference
