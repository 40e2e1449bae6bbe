"""Half precision."""

from __future__ import annotations

import numpy as np

from ..types import Float32Array
from .formats import Codec, CodecError, Payload

LARGEST = 65504.0


class Float16(Codec):
    """IEEE half precision, little-endian, two bytes an element: 11 bits of precision up to 65504.

    Rounds to the nearest, to even where two are as near: the error is at most 1/2048 of the value, or 3e-8.
    A finite value beyond ±65504 becomes ±65504, not infinite, so that error feedback can send the rest of it
    later. Infinities and NaNs stay what they are.
    """

    name = "float16"

    def encode(self, values: Float32Array) -> Payload:
        """uint8 [2 * elements]."""
        with np.errstate(over="ignore", under="ignore"):
            halves = values.astype("<f2")
        if np.isinf(halves).any():
            over = np.isinf(halves) & np.isfinite(values)
            halves[over] = np.copysign(np.float16(LARGEST), values[over])
        return halves.view(np.uint8)

    def decode(self, payload: Payload, elements: int) -> Float32Array:
        """Exact."""
        if payload.nbytes != 2 * elements:
            raise CodecError(f"float16: {payload.nbytes} bytes came for {elements} elements")
        return payload.view("<f2").astype("<f4")
