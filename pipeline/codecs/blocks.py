"""Few bits an element, and one scale a block: int8, int4 and int2."""

from __future__ import annotations

from functools import cache
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import Float32Array
from .codec import Codec, CodecError, Payload

SMALLEST_BLOCK, LARGEST_BLOCK = 64, 1 << 16
"""Limits of the elements in a block of int8."""
_TINY = np.float32(np.finfo(np.float32).tiny)
_LARGEST = np.float32(np.finfo(np.float32).max)


class Levels(NamedTuple):
    """Levels that are spread evenly and lie symmetrically around 0.

    An element x of a block with the scale s is sent as the level l = round(x / s - `offset`), and comes as
    (l + `offset`) s. The scale is the block's largest |x|, divided by `divisor`.

    Attributes:
        bits: of a level; 2, 4 or 8.
        lowest, highest: the levels.
        offset: 0, so that a level is 0; or ½, so that all 2^bits levels are used and none is.
    """

    bits: int
    lowest: int
    highest: int
    divisor: int
    offset: float

    @classmethod
    def with_zero(cls, bits: int) -> Levels:
        """Return 2^bits - 1 levels, the outer ones at the largest |x|: off by at most half a scale."""
        most = 2 ** (bits - 1) - 1
        return cls(bits, -most, most, most, 0.0)

    @classmethod
    def without_zero(cls, bits: int) -> Levels:
        """Return 2^bits levels, the outer ones half a scale below the largest |x|: off by at most that."""
        half = 2 ** (bits - 1)
        return cls(bits, -half, half - 1, half, 0.5)

    @property
    def largest_scale(self) -> np.float32:
        """The largest scale; times the outer level it is still finite."""
        return np.float32(np.nextafter(_LARGEST / np.float32(self.divisor), np.float32(0)))

    def payload_bytes(self, elements: int) -> int:
        """Return the bytes of so many packed levels."""
        return -(-elements * self.bits // 8)

    def quantize(self, rows: Float32Array, scales: Float32Array, levels: NDArray[np.int8], name: str) -> None:
        """Quantize blocks, float32 [n, block], into scales [n] and levels [n, block].

        Raises CodecError, in the name of a codec, for values that are not finite.
        """
        if not rows.size:
            return
        most = np.maximum(rows.max(axis=1), -rows.min(axis=1))
        if not np.isfinite(most).all():
            raise CodecError(f"{name}: values are not finite")
        np.minimum(most / np.float32(self.divisor), self.largest_scale, out=scales)
        scales[scales < _TINY] = 0
        with np.errstate(divide="ignore"):
            steps = np.where(scales > 0, np.float32(1) / scales, np.float32(0))
        scaled = rows * steps[:, None]
        if self.offset:
            scaled -= np.float32(self.offset)
        np.rint(scaled, out=scaled)
        np.clip(scaled, self.lowest, self.highest, out=scaled)
        levels[...] = scaled

    def pack(self, levels: NDArray[np.int8], packed: Payload) -> None:
        """Pack levels, flat, into bytes; the first of a byte has its lowest bits."""
        if self.bits == 8:
            packed[:] = levels.view(np.uint8)
            return
        per_byte = 8 // self.bits
        codes = np.zeros(len(packed) * per_byte, np.uint8)
        np.subtract(levels, self.lowest, out=codes[: len(levels)], casting="unsafe")
        # The codes of a byte as one number, each in 8 bits: those above move down beside the first.
        together = codes.view(f"<u{per_byte}")
        merged = together.copy()
        for place in range(1, per_byte):
            merged |= together >> (place * (8 - self.bits))
        packed[:] = merged & 0xFF

    def unpack(self, packed: Payload, elements: int, name: str) -> Float32Array:
        """Return the levels plus the offset, float32 [elements]; raises CodecError for other levels."""
        if self.bits == 8:
            levels = packed.view(np.int8)
            if elements and (levels.min() < self.lowest or levels.max() > self.highest):
                raise CodecError(f"{name}: a level is below {self.lowest} or above {self.highest}")
            values = levels.astype("<f4")
            if self.offset:
                values += np.float32(self.offset)
            return values
        values, known = _table(self)
        if not known.all() and not known[packed].all():
            raise CodecError(f"{name}: a level is below {self.lowest} or above {self.highest}")
        return np.take(values, packed, axis=0).reshape(-1)[:elements]

    def check_scales(self, scales: Float32Array, name: str) -> None:
        """Raise CodecError for scales that `quantize` cannot have made."""
        if not np.all((scales >= 0) & (scales <= self.largest_scale)):
            raise CodecError(f"{name}: a scale is negative, too large, or not a number")


class BlockCodec(Codec):
    """Encoding in blocks of whole numbers of few bits, with one scale a block.

    Each block has `block` elements; the last one may have fewer. The payload has the scales, float32
    little-endian, then the levels of all elements (see `Levels`), packed. The error is at most half a scale,
    plus what float32 loses in `x / scale`. A block whose scale would be below the smallest normal float32 is
    sent as zeros.

    `encode` raises CodecError for values that are not finite, because one of them would spoil its block.
    """

    levels: ClassVar[Levels]

    def __init__(self, block: int) -> None:
        self._block = block

    def encode(self, values: Float32Array) -> Payload:
        """Return uint8 [4 * blocks + bits * elements / 8]."""
        scales_bytes = 4 * self._blocks(len(values))
        payload = np.empty(scales_bytes + self.levels.payload_bytes(len(values)), dtype=np.uint8)
        scales, packed = payload[:scales_bytes].view("<f4"), payload[scales_bytes:]
        levels = np.empty(len(values), np.int8)
        whole = len(values) // self._block
        head = whole * self._block
        rows, tail = in_rows(values, self._block)
        self.levels.quantize(rows, scales[:whole], levels[:head].reshape(rows.shape), self.name)
        self.levels.quantize(tail, scales[whole:], levels[None, head:], self.name)
        self.levels.pack(levels, packed)
        return payload

    def decode(self, payload: Payload, elements: int) -> Float32Array:
        """Return the values; they take `32 / bits` bytes for each byte of the payload."""
        blocks = self._blocks(elements)
        if elements < 0 or payload.nbytes != 4 * blocks + self.levels.payload_bytes(elements):
            raise CodecError(
                f"{self.name} in blocks of {self._block}: the payload for {elements} elements has "
                f"{payload.nbytes} bytes"
            )
        scales = payload[: 4 * blocks].view("<f4")
        self.levels.check_scales(scales, self.name)
        values = self.levels.unpack(payload[4 * blocks :], elements, self.name)
        whole = elements // self._block
        rows, tail = in_rows(values, self._block)
        np.multiply(rows, scales[:whole, None], out=rows)
        np.multiply(tail, scales[whole:, None], out=tail)
        return values

    def _blocks(self, elements: int) -> int:
        return -(-elements // self._block)


class Int8(BlockCodec):
    """`BlockCodec` of one byte an element: 255 levels, off by at most 1/254 of the block's largest."""

    name = "int8"
    levels = Levels.with_zero(8)

    def __init__(self, block: int = 1024) -> None:
        if not SMALLEST_BLOCK <= block <= LARGEST_BLOCK:
            raise ValueError(f"int8_block: {block} given; give {SMALLEST_BLOCK} to {LARGEST_BLOCK}")
        super().__init__(block)


class Int4(BlockCodec):
    """`BlockCodec` of two elements a byte: 15 levels, off by at most 1/14 of the largest of 128 elements."""

    name = "int4"
    levels = Levels.with_zero(4)

    def __init__(self) -> None:
        super().__init__(128)


class Int2(BlockCodec):
    """`BlockCodec` of four elements a byte: 4 levels, off by at most 1/4 of the largest of 128 elements.

    No level is 0: for it two levels would be left, and an error of half the largest.
    """

    name = "int2"
    levels = Levels.without_zero(2)

    def __init__(self) -> None:
        super().__init__(128)


def in_rows(flat: Float32Array, block: int) -> tuple[Float32Array, Float32Array]:
    """Return views of the whole blocks [n, block], and of the rest [1, m], or [0, 0] if there is none."""
    whole = len(flat) // block
    rest = flat[whole * block :]
    return flat[: whole * block].reshape(whole, block), rest.reshape(int(len(rest) > 0), len(rest))


@cache
def _table(levels: Levels) -> tuple[Float32Array, NDArray[np.bool_]]:
    """Return, for every byte, its levels plus the offset, float32 [256, n], and whether it has such."""
    shifts = np.arange(0, 8, levels.bits)
    byte_levels = ((np.arange(256)[:, None] >> shifts) & (2**levels.bits - 1)) + levels.lowest
    return (byte_levels + levels.offset).astype("<f4"), (byte_levels <= levels.highest).all(axis=1)
