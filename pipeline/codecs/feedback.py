"""Error feedback of lossy codecs, without I/O.

What an encoding loses is stored, and sent with the next one. It is stored either as a residual at the sender
(`ErrorFeedback`), or in a reference at both ends, from which they send differences (`Reference`), or by the
sender in what it takes its deltas from (`Deltas`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..types import Float32Array, is_finite
from .formats import Codec, CodecError, Float32, Payload

_PLAIN = Float32()

NO_REFERENCE = 0
CODED_DELTA = 1
"""In the place of a reference: the chunk is a delta that the codec has encoded."""


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
        return _as_float32(values)
    payload = codec.encode(values)
    decoded = codec.decode(payload, len(values))
    return Encoded(payload, True, decoded) if is_finite(decoded) else _as_float32(values)


def _as_float32(values: Float32Array) -> Encoded:
    """Return a chunk that a lossy codec has not encoded."""
    return Encoded(_PLAIN.encode(values), False, values)


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

    `encode` adds what earlier encodings lost, and keeps what it loses itself. Used by one thread.
    """

    def __init__(self, codec: Codec, elements: int) -> None:
        self._codec = codec
        self._residual = np.zeros(elements if codec.lossy else 0, dtype=np.float32)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the residual."""
        return self._residual.nbytes

    @property
    def is_enabled(self) -> bool:
        """Whether a residual is kept, as of a lossy codec."""
        return self._codec.lossy

    def begin(self) -> None:
        """Start an exchange."""

    def complete(self, number: int) -> None:
        """Finish an exchange."""

    def encode(self, start: int, values: Float32Array) -> Encoded:
        """Encode the chunk that starts at element `start`, float32 [n].

        Changes the residual, so call it once for each chunk that the other end will decode.
        """
        if not self._codec.lossy:
            return encode_chunk(self._codec, values)
        residual = self._residual[start : start + len(values)]
        with np.errstate(over="ignore", invalid="ignore"):
            corrected = values + residual
        encoded = encode_chunk(self._codec, corrected)
        if encoded.coded:
            np.subtract(corrected, encoded.decoded, out=residual)
        else:
            residual[:] = 0
        return encoded


class Reference:
    """One end's copy of the values decoded last.

    Both ends update their copies alike. The next difference from the copy contains what the last encoding
    lost, so errors are fed back without a residual.

    `version` is the number, from 1, of the exchange whose values are held. It is NO_REFERENCE during an
    exchange and after a failed one; the next exchange is then sent as float32 and starts a new reference. A
    lossless codec has no reference.
    """

    def __init__(self, codec: Codec, elements: int) -> None:
        self._codec = codec
        self._base = NO_REFERENCE
        self.version = NO_REFERENCE
        self.values = np.empty(elements if codec.lossy else 0, dtype=np.float32)
        self._difference = np.empty(0, dtype=np.float32)

    @property
    def is_enabled(self) -> bool:
        """Whether there is a reference; a lossless codec has none."""
        return self._codec.lossy

    @property
    def base(self) -> int:
        """The exchange whose values the chunks of the current one may refer to."""
        return self._base

    @property
    def memory_bytes(self) -> int:
        """Bytes of the reference and of the scratch chunk."""
        return self.values.nbytes + self._difference.nbytes

    def begin(self) -> None:
        """Start an exchange; an unfinished one counts as failed."""
        self._base, self.version = self.version, NO_REFERENCE

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
        return NO_REFERENCE, _as_float32(values)

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


class Deltas:
    """One end of deltas that each count once, as a center that sums them needs it.

    A chunk is encoded as it is, and refers to nothing: as the reference stands CODED_DELTA, or NO_REFERENCE
    if it is sent as float32. The sender asks for what was `lost`, and leaves it in the next delta.

    Attributes:
        is_exact: whether all chunks are sent as float32, as in a last exchange, which no other follows.
    """

    is_enabled = False

    def __init__(self, codec: Codec, elements: int) -> None:
        self._codec = codec
        self._elements = elements
        self._lost = np.zeros(0, dtype=np.float32)
        self.is_exact = False

    @property
    def memory_bytes(self) -> int:
        """Bytes of what was lost."""
        return self._lost.nbytes

    @property
    def lost(self) -> Float32Array:
        """What the codec has lost of the last exchange, by element; [1], a 0, if it can lose nothing."""
        return self._lost if len(self._lost) else np.zeros(1, dtype=np.float32)

    def begin(self) -> None:
        """Start an exchange."""

    def complete(self, number: int) -> None:
        """Finish an exchange."""

    def encode(self, start: int, values: Float32Array) -> tuple[int, Encoded]:
        """Encode a chunk; return what stands as its reference, and the chunk."""
        if not self._codec.lossy:
            return NO_REFERENCE, encode_chunk(self._codec, values)
        if not len(self._lost):
            self._lost = np.zeros(self._elements, dtype=np.float32)
        encoded = _as_float32(values) if self.is_exact else encode_chunk(self._codec, values)
        lost = self._lost[start : start + len(values)]
        if encoded.coded:
            np.subtract(values, encoded.decoded, out=lost)
        else:
            lost[:] = 0
        return CODED_DELTA if encoded.coded else NO_REFERENCE, encoded

    def decode(self, start: int, version: int, payload: Payload, elements: int) -> Float32Array:  # noqa: ARG002
        """Return a chunk's values; raises CodecError as `Reference.decode`."""
        if version not in (NO_REFERENCE, CODED_DELTA):
            raise CodecError(f"the delta refers to exchange {version}, and deltas refer to none")
        return decode_chunk(
            self._codec, payload, elements, coded=version == CODED_DELTA or not self._codec.lossy
        )
