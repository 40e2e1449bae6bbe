"""Only the elements that are largest, in few bits: topk."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..types import Float32Array
from .blocks import Levels, in_rows
from .codec import Codec, CodecError, Payload

LARGEST_FRACTION = 0.5
"""Limit of the fraction of elements that topk sends."""
BLOCK = 4096
"""Elements of which the largest are chosen; they share a scale."""
VALUE_BITS = (2, 4, 8)

Places = NDArray[np.int64]
_FAR = 255


class TopK(Codec):
    """Encoding of only the elements that are largest by magnitude, in few bits.

    Of each block of `BLOCK` elements (the last one may have fewer) the share `fraction`, and at least one
    element, is sent; the others become zero. The payload has a float32 scale for each block, then of all sent
    elements, in their order, the levels (`Levels.without_zero` of `bits`), then where they are:

    - a bitmap with one bit an element; the first element has the highest bit of the first byte;
    - or, if that is shorter, the number of elements left out before each one that is sent. It takes one byte;
      255 stands for 255 elements left out and says that more follow.

    A sent element is off by at most 1 / 2^`bits` of its block's largest. The error of an omitted element is
    its whole value, so use this codec only with error feedback. `encode` raises CodecError for values that
    are not finite, because NaNs have no order.

    The choice by block and the scales are those of SparseLoCo (Sarfi et al., arXiv 2508.15706).
    """

    name = "topk"

    def __init__(self, fraction: float = 0.05, bits: int = 2) -> None:
        if not 0.0 < fraction <= LARGEST_FRACTION:
            raise ValueError(
                f"topk_fraction: {fraction!r} given; give a number above 0 and at most {LARGEST_FRACTION}"
            )
        if bits not in VALUE_BITS:
            raise ValueError(f"topk_bits: {bits!r} given; give one of {', '.join(map(str, VALUE_BITS))}")
        self._fraction = fraction
        self._levels = Levels.without_zero(bits)

    def encode(self, values: Float32Array) -> Payload:
        """Return uint8 [4 * blocks + bits * count / 8 + bytes of the places]; `count` elements are sent."""
        count = self._count(len(values))
        scales = np.empty(-(-len(values) // BLOCK), "<f4")
        levels = np.empty(count, np.int8)
        places = np.empty(count, np.int64)
        done = scaled = start = 0
        for rows in in_rows(values, BLOCK):
            if not rows.size:
                continue
            shape = len(rows), self._kept(rows.shape[1])
            part, blocks = slice(done, done + shape[0] * shape[1]), slice(scaled, scaled + len(rows))
            chosen = _largest(rows, shape[1])
            np.add(chosen, start, out=places[part])
            sent = np.take(rows, chosen).reshape(shape)
            self._levels.quantize(sent, scales[blocks], levels[part].reshape(shape), self.name)
            done, scaled, start = part.stop, blocks.stop, start + rows.size
        packed = np.empty(self._levels.payload_bytes(count), np.uint8)
        self._levels.pack(levels, packed)
        return np.concatenate([scales.view(np.uint8), packed, _pack_places(places, len(values))])

    def decode(self, payload: Payload, elements: int) -> Float32Array:
        """Return the values; they take up to `32 / (fraction * (8 + bits))` times the payload's memory."""
        count, scales_bytes = self._count(elements), 4 * -(-elements // BLOCK)
        head = scales_bytes + self._levels.payload_bytes(count)
        wrong = f"topk: the payload for {count} of {elements} elements has {payload.nbytes} bytes"
        if elements < 0 or payload.nbytes < head or 8 * payload.nbytes < count:
            raise CodecError(wrong)
        scales = payload[:scales_bytes].copy().view("<f4")
        self._levels.check_scales(scales, self.name)
        places = _unpack_places(payload[head:], elements)
        if places is None or len(places) != count:
            raise CodecError(wrong)
        kept = np.full(len(scales), self._kept(BLOCK))
        kept[elements // BLOCK :] = self._kept(elements % BLOCK)
        blocks = np.repeat(np.arange(len(scales)), kept)
        if count and (places[-1] >= elements or not np.array_equal(places // BLOCK, blocks)):
            raise CodecError(f"topk: places are not below {elements}, or not as many in each block")
        sent = self._levels.unpack(payload[scales_bytes:head], count, self.name)
        values = np.zeros(elements, dtype="<f4")
        values[places] = sent * scales[blocks]
        return values

    def _kept(self, elements: int) -> int:
        return min(elements, math.ceil(self._fraction * elements))

    def _count(self, elements: int) -> int:
        whole, rest = divmod(max(0, elements), BLOCK)
        return whole * self._kept(BLOCK) + self._kept(rest)


def _largest(rows: Float32Array, kept: int) -> Places:
    """Return the places of the `kept` largest of each row, ascending, in all rows together."""
    sizes = np.abs(rows)
    if not np.isfinite(sizes.max()):
        raise CodecError("topk: values are not finite")
    place = rows.shape[1] - kept
    # This is several times as fast as `argpartition`.
    least = np.partition(sizes, place, axis=1)[:, place, None]
    chosen = sizes >= least
    places = np.flatnonzero(chosen)
    if len(places) == kept * len(rows):
        return places
    (more,) = np.nonzero(np.count_nonzero(chosen, axis=1) > kept)
    above, ties = sizes[more] > least[more], sizes[more] == least[more]
    room = kept - np.count_nonzero(above, axis=1)
    chosen[more] = above | (ties & (np.cumsum(ties, axis=1) <= room[:, None]))
    return np.flatnonzero(chosen)


def _pack_places(places: Places, elements: int) -> Payload:
    """Return where the elements are, as a bitmap or as steps from one to the next, whichever is shorter."""
    before = np.diff(places, prepend=-1) - 1
    far = before // _FAR
    size = len(before) + int(far.sum())
    if size >= -(-elements // 8):
        present = np.zeros(elements, np.bool_)
        present[places] = True
        return np.packbits(present)
    packed = np.full(size, _FAR, np.uint8)
    packed[np.arange(len(before)) + np.cumsum(far)] = before % _FAR
    return packed


def _unpack_places(packed: Payload, elements: int) -> Places | None:
    """Return the ascending places of the sent elements; None for bytes that `_pack_places` never returns."""
    bitmap_bytes = -(-elements // 8)
    if len(packed) == bitmap_bytes:
        return np.flatnonzero(np.unpackbits(packed, count=elements)).astype(np.int64)
    if len(packed) > bitmap_bytes or (len(packed) and packed[-1] == _FAR):
        return None
    places: Places = np.cumsum(packed, dtype=np.int64)[packed != _FAR]
    places += np.arange(len(places))
    return places
