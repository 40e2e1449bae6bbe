"""One byte an element and one scale a block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..types import Float32Array
from .formats import Codec, CodecError, Payload

SMALLEST_BLOCK, LARGEST_BLOCK = 64, 1 << 16
_TINY = float(np.finfo(np.float32).tiny)
# So that 127 times it is still finite.
_LARGEST_SCALE = np.nextafter(np.float32(float(np.finfo(np.float32).max) / 127), np.float32(0))


class Int8(Codec):
    """Blocks of `block` elements, each `round(x / scale)` as int8 with `scale` the block's largest |x| / 127.

    The payload is the scales, float32 little-endian, one a block (the last block may be shorter), then the
    int8 of all elements. The error is at most half a scale (and what float32 loses in `x / scale`); a block
    whose scale would be below the smallest normal float32 travels as zeros.

    Raises CodecError for values that are not finite: one of them would take its block's other values along.
    """

    name = "int8"

    def __init__(self, block: int = 1024) -> None:
        if not SMALLEST_BLOCK <= block <= LARGEST_BLOCK:
            raise ValueError(f"int8_block: {block} given; {SMALLEST_BLOCK} to {LARGEST_BLOCK} will do")
        self._block = block

    def encode(self, values: Float32Array) -> Payload:
        """uint8 [4 * blocks + elements]."""
        scales_bytes = 4 * self._blocks(len(values))
        payload = np.empty(scales_bytes + len(values), dtype=np.uint8)
        scales, levels = payload[:scales_bytes].view("<f4"), payload[scales_bytes:].view(np.int8)
        whole = len(values) // self._block
        head = whole * self._block
        _quantize(_rows(values[:head], whole), scales[:whole], _rows(levels[:head], whole))
        if head < len(values):
            _quantize(values[None, head:], scales[whole:], levels[None, head:])
        return payload

    def decode(self, payload: Payload, elements: int) -> Float32Array:
        """Takes four bytes of memory for each byte of the payload."""
        blocks = self._blocks(elements)
        if elements < 0 or payload.nbytes != 4 * blocks + elements:
            raise CodecError(f"int8 by {self._block}: {payload.nbytes} bytes came for {elements} elements")
        scales, levels = payload[: 4 * blocks].view("<f4"), payload[4 * blocks :].view(np.int8)
        if not np.all((scales >= 0) & (scales <= _LARGEST_SCALE)):
            raise CodecError("int8: a scale that is negative, too large, or no number")
        if elements and levels.min() < -127:
            raise CodecError("int8: a level below -127")
        values = levels.astype("<f4")
        whole = elements // self._block
        head = whole * self._block
        rows = _rows(values[:head], whole)
        np.multiply(rows, scales[:whole, None], out=rows)
        if head < elements:
            values[head:] *= scales[whole]
        return values

    def _blocks(self, elements: int) -> int:
        return -(-elements // self._block)


def _rows(flat: NDArray[Any], count: int) -> NDArray[Any]:
    """A view [count, block]; also of nothing."""
    return flat.reshape(count, len(flat) // count if count else 0)


def _quantize(values: Float32Array, scales: Float32Array, levels: NDArray[np.int8]) -> None:
    """Rows of values, float32 [n, block], to scales [n] and levels [n, block]."""
    if not values.size:
        return
    most = np.maximum(values.max(axis=1), -values.min(axis=1))
    if not np.isfinite(most).all():
        raise CodecError("int8: values that are not finite")
    np.minimum(most / np.float32(127), _LARGEST_SCALE, out=scales)
    scales[scales < _TINY] = 0
    with np.errstate(divide="ignore"):
        steps = np.where(scales > 0, np.float32(1) / scales, np.float32(0))
    scaled = values * steps[:, None]
    np.rint(scaled, out=scaled)
    np.clip(scaled, -127, 127, out=scaled)
    levels[...] = scaled
