"""The values that both ends of a link hold: a lossy codec sends how far the next ones are from them."""

from __future__ import annotations

import numpy as np

from ..types import Float32Array
from .feedback import Encoded, decode_chunk, encode_chunk
from .float32 import Float32
from .formats import Codec, CodecError, Payload

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
