"""Values as they are."""

from __future__ import annotations

import numpy as np

from ..types import Float32Array
from .formats import Codec, CodecError, Payload


class Float32(Codec):
    """Little-endian float32, bit by bit; neither side copies."""

    name = "float32"
    lossy = False

    def encode(self, values: Float32Array) -> Payload:
        """A view of the values' own memory."""
        return values.astype("<f4", copy=False).view(np.uint8)

    def decode(self, payload: Payload, elements: int) -> Float32Array:
        """A view of the payload's memory; read-only if that is."""
        if payload.nbytes != 4 * elements:
            raise CodecError(f"float32: {payload.nbytes} bytes came for {elements} elements")
        return payload.view("<f4")
