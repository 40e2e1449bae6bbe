"""The upper half of a float32."""

from __future__ import annotations

import numpy as np

from ..types import Float32Array
from .formats import Codec, CodecError, Payload

_BLOCK = 1 << 14


class BFloat16(Codec):
    """bfloat16, little-endian, two bytes an element: 8 bits of precision, the range of float32.

    Rounds to the nearest, to even where two are as near: the error is at most 1/256 of the value, or of the
    smallest normal float32. Infinities and NaNs stay what they are (a NaN becomes a quiet one); a value above
    the largest finite bfloat16 (3.39e38) by more than half a step becomes infinite, as IEEE 754 has it.
    """

    name = "bfloat16"

    def encode(self, values: Float32Array) -> Payload:
        """uint8 [2 * elements]."""
        bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
        halves = np.empty(len(bits), dtype="<u2")
        rounded = np.empty(min(_BLOCK, len(bits)), dtype="<u4")
        # Block by block, so that what is between the steps stays in the fastest cache.
        for at in range(0, len(bits), _BLOCK):
            part = bits[at : at + _BLOCK]
            work = rounded[: len(part)]
            np.right_shift(part, 16, out=work)
            np.bitwise_and(work, 1, out=work)
            np.add(work, 0x7FFF, out=work)
            np.add(work, part, out=work)
            np.right_shift(work, 16, out=work)
            halves[at : at + _BLOCK] = work
            # Only a NaN is above the infinities; rounding could carry it over into a number.
            np.bitwise_and(part, 0x7FFFFFFF, out=work)
            if work.max() > 0x7F800000:
                nan = work > 0x7F800000
                halves[at : at + _BLOCK][nan] = (part[nan] >> 16) | 0x0040
        return halves.view(np.uint8)

    def decode(self, payload: Payload, elements: int) -> Float32Array:
        """Exact."""
        if payload.nbytes != 2 * elements:
            raise CodecError(f"bfloat16: {payload.nbytes} bytes came for {elements} elements")
        bits = payload.view("<u2").astype("<u4")
        np.left_shift(bits, 16, out=bits)
        return bits.view("<f4")
