"""Only the largest elements."""

from __future__ import annotations

import math

import numpy as np

from ..types import Float32Array
from .formats import Codec, CodecError, Payload

LARGEST_FRACTION = 0.5


class TopK(Codec):
    """The `fraction` of a chunk's elements that are largest by magnitude, as they are; the others are zero.

    At least one element of a chunk travels. The payload is the elements' indices in the chunk, uint32
    ascending, then their values, float32, both little-endian: 8 bytes each, so that a fraction above a half
    would be more than float32. The error of an element that was left out is its whole value: use it with
    error feedback only.

    Raises CodecError for values that are not finite: there is no order among NaNs.
    """

    name = "topk"

    def __init__(self, fraction: float = 0.05) -> None:
        if not 0.0 < fraction <= LARGEST_FRACTION:
            raise ValueError(
                f"topk_fraction: {fraction!r} given; above 0 and at most {LARGEST_FRACTION} will do"
            )
        self._fraction = fraction

    def encode(self, values: Float32Array) -> Payload:
        """uint8 [8 * kept]."""
        kept = self._kept(len(values))
        payload = np.empty(8 * kept, dtype=np.uint8)
        if not kept:
            return payload
        sizes = np.abs(values)
        if not np.isfinite(sizes.max()):
            raise CodecError("topk: values that are not finite")
        # Several times as fast as `argpartition`.
        least = np.partition(sizes, len(values) - kept)[len(values) - kept]
        chosen = np.flatnonzero(sizes >= least)
        if len(chosen) > kept:
            surplus = np.flatnonzero(sizes[chosen] == least)[kept - len(chosen) :]
            chosen = np.delete(chosen, surplus)
        payload[: 4 * kept].view("<u4")[:] = chosen
        np.take(values, chosen, out=payload[4 * kept :].view("<f4"))
        return payload

    def decode(self, payload: Payload, elements: int) -> Float32Array:
        """Takes `4 / (8 * fraction)` times the payload's bytes of memory."""
        kept = self._kept(elements)
        if elements < 0 or payload.nbytes != 8 * kept:
            raise CodecError(f"topk: {payload.nbytes} bytes came for {kept} of {elements} elements")
        chosen = payload[: 4 * kept].view("<u4").astype(np.int64)
        if kept and (chosen[-1] >= elements or not np.all(chosen[1:] > chosen[:-1])):
            raise CodecError(f"topk: indices that do not ascend, or are not below {elements}")
        kept_values = payload[4 * kept :].view("<f4")
        if not np.isfinite(kept_values).all():
            raise CodecError("topk: values that are not finite")
        values = np.zeros(elements, dtype="<f4")
        values[chosen] = kept_values
        return values

    def _kept(self, elements: int) -> int:
        return min(elements, math.ceil(self._fraction * elements)) if elements > 0 else 0
