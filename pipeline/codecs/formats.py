"""The codecs: encoding of float32 values as bytes, chunk by chunk.

Codecs have no state. What a lossy codec loses is fed back by the caller, see `feedback`.

- `float32`: the values as they are;
- `sparse`: only the values that are not 0;
- `bfloat16`: the upper half of each float32;
- `float16`: half precision;
- `int8`: one byte an element and one scale a block;
- `topk`: only the largest elements.
"""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..types import Float32Array

Payload = NDArray[np.uint8]

FLOAT16_MAX = 65504.0
SMALLEST_BLOCK, LARGEST_BLOCK = 64, 1 << 16
"""Limits of the elements in a block of int8."""
LARGEST_FRACTION = 0.5
"""Limit of the fraction of elements that topk sends."""
# Elements that bfloat16 converts at once, so that intermediate values stay in the CPU's fastest cache.
_BLOCK = 1 << 14
_TINY = float(np.finfo(np.float32).tiny)
# The largest scale of int8: 127 times it is still finite.
_LARGEST_SCALE = np.nextafter(np.float32(float(np.finfo(np.float32).max) / 127), np.float32(0))


class CodecError(ValueError):
    """A payload cannot be decoded, or values cannot be encoded."""


class Codec(ABC):
    """One encoding of float32 values.

    Instances are immutable; any thread may use them.

    Class attributes:
        name: its name in a job file.
        lossy: whether `decode(encode(x))` may differ from `x`.
    """

    name: ClassVar[str]
    lossy: ClassVar[bool] = True

    @abstractmethod
    def encode(self, values: Float32Array) -> Payload:
        """Return the payload, uint8 [bytes], of float32 [elements].

        The payload may share memory with `values`.
        """

    @abstractmethod
    def decode(self, payload: Payload, elements: int) -> Float32Array:
        """Return float32 [elements]; may share memory with `payload`.

        Raises CodecError, also for a hostile payload.
        """


class BFloat16(Codec):
    """Encoding as bfloat16: 8 bits of precision, the range of float32.

    Little-endian, two bytes an element. Values are rounded to the nearest, ties to even: the error is at most
    1/256 of the value, or of the smallest normal float32. Infinities and NaNs stay what they are; a NaN
    becomes a quiet one. A value more than half a step above the largest finite bfloat16 (3.39e38) becomes
    infinite, as in IEEE 754.
    """

    name = "bfloat16"

    def encode(self, values: Float32Array) -> Payload:
        """Return uint8 [2 * elements]."""
        bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
        halves = np.empty(len(bits), dtype="<u2")
        rounded = np.empty(min(_BLOCK, len(bits)), dtype="<u4")
        for start in range(0, len(bits), _BLOCK):
            part = bits[start : start + _BLOCK]
            work = rounded[: len(part)]
            np.right_shift(part, 16, out=work)
            np.bitwise_and(work, 1, out=work)
            np.add(work, 0x7FFF, out=work)
            np.add(work, part, out=work)
            np.right_shift(work, 16, out=work)
            halves[start : start + _BLOCK] = work
            # NaNs are the only bits above those of infinity. Rounding could carry them into a number.
            np.bitwise_and(part, 0x7FFFFFFF, out=work)
            if work.max() > 0x7F800000:
                nan = work > 0x7F800000
                halves[start : start + _BLOCK][nan] = (part[nan] >> 16) | 0x0040
        return halves.view(np.uint8)

    def decode(self, payload: Payload, elements: int) -> Float32Array:
        """Return the exact values of the payload."""
        if payload.nbytes != 2 * elements:
            raise CodecError(f"bfloat16: the payload for {elements} elements has {payload.nbytes} bytes")
        bits = payload.view("<u2").astype("<u4")
        np.left_shift(bits, 16, out=bits)
        return bits.view("<f4")


class Float16(Codec):
    """Encoding in half precision: 11 bits of precision, up to 65504.

    IEEE 754, little-endian, two bytes an element. Values are rounded to the nearest, ties to even: the error
    is at most 1/2048 of the value, or 3e-8. A finite value beyond ±65504 becomes ±65504, not infinite, so
    that error feedback can send the rest of it later. Infinities and NaNs stay what they are.
    """

    name = "float16"

    def encode(self, values: Float32Array) -> Payload:
        """Return uint8 [2 * elements]."""
        with np.errstate(over="ignore", under="ignore"):
            halves = values.astype("<f2")
        if np.isinf(halves).any():
            over = np.isinf(halves) & np.isfinite(values)
            halves[over] = np.copysign(np.float16(FLOAT16_MAX), values[over])
        return halves.view(np.uint8)

    def decode(self, payload: Payload, elements: int) -> Float32Array:
        """Return the exact values of the payload."""
        if payload.nbytes != 2 * elements:
            raise CodecError(f"float16: the payload for {elements} elements has {payload.nbytes} bytes")
        return payload.view("<f2").astype("<f4")


class Float32(Codec):
    """Encoding as little-endian float32, bit by bit; neither side copies."""

    name = "float32"
    lossy = False

    def encode(self, values: Float32Array) -> Payload:
        """Return a view of the values' own memory."""
        return values.astype("<f4", copy=False).view(np.uint8)

    def decode(self, payload: Payload, elements: int) -> Float32Array:
        """Return a view of the payload's memory; read-only if that is."""
        if payload.nbytes != 4 * elements:
            raise CodecError(f"float32: the payload for {elements} elements has {payload.nbytes} bytes")
        return payload.view("<f4")


class Sparse(Codec):
    """Encoding of the elements other than 0, unchanged.

    The payload is a bitmap with one bit an element, then the little-endian float32 of the elements whose bit
    is set. The first element has the highest bit of the first byte. If this is not shorter than the payload
    of `float32`, that one is used; its length tells them apart. Meant for algorithms that send few elements.
    A minus zero is sent.
    """

    name = "sparse"
    lossy = False

    def encode(self, values: Float32Array) -> Payload:
        """Return uint8 [elements / 8 + 4 * nonzero], at most [4 * elements]."""
        plain = values.astype("<f4", copy=False)
        present = plain.view("<u4") != 0
        kept = plain[present]
        if self._bitmap_bytes(len(plain)) + kept.nbytes >= plain.nbytes:
            return plain.view(np.uint8)
        return np.concatenate([np.packbits(present), kept.view(np.uint8)])

    def decode(self, payload: Payload, elements: int) -> Float32Array:
        """Return the values; their memory is at most 32 times the payload's."""
        if payload.nbytes == 4 * elements:
            return payload.view("<f4")
        head = self._bitmap_bytes(elements)
        if elements < 0 or not head <= payload.nbytes < 4 * elements or (payload.nbytes - head) % 4:
            raise CodecError(f"sparse: the payload for {elements} elements has {payload.nbytes} bytes")
        present = np.unpackbits(payload[:head], count=elements).view(np.bool_)
        kept = np.frombuffer(payload[head:].tobytes(), "<f4")
        if np.count_nonzero(present) != len(kept):
            raise CodecError(
                f"sparse: the payload for {np.count_nonzero(present)} of {elements} elements has "
                f"{payload.nbytes} bytes"
            )
        values = np.zeros(elements, dtype="<f4")
        values[present] = kept
        return values

    def _bitmap_bytes(self, elements: int) -> int:
        return -(-elements // 8)


class Int8(Codec):
    """Encoding in blocks of int8 with one scale a block.

    Each block has `block` elements; the last one may have fewer. Its scale is its largest |x|, divided by
    127, and an element x is sent as `round(x / scale)`. The payload has the scales, float32 little-endian,
    then the int8 of all elements. The error is at most half a scale, plus what float32 loses in `x / scale`.
    A block whose scale would be below the smallest normal float32 is sent as zeros.

    Raises CodecError for values that are not finite, because one of them would spoil its whole block.
    """

    name = "int8"

    def __init__(self, block: int = 1024) -> None:
        if not SMALLEST_BLOCK <= block <= LARGEST_BLOCK:
            raise ValueError(f"int8_block: {block} given; give {SMALLEST_BLOCK} to {LARGEST_BLOCK}")
        self._block = block

    def encode(self, values: Float32Array) -> Payload:
        """Return uint8 [4 * blocks + elements]."""
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
        """Return the values; they take four bytes for each byte of the payload."""
        blocks = self._blocks(elements)
        if elements < 0 or payload.nbytes != 4 * blocks + elements:
            raise CodecError(
                f"int8 in blocks of {self._block}: the payload for {elements} elements has "
                f"{payload.nbytes} bytes"
            )
        scales, levels = payload[: 4 * blocks].view("<f4"), payload[4 * blocks :].view(np.int8)
        if not np.all((scales >= 0) & (scales <= _LARGEST_SCALE)):
            raise CodecError("int8: a scale is negative, too large, or not a number")
        if elements and levels.min() < -127:
            raise CodecError("int8: a level is below -127")
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


class TopK(Codec):
    """Encoding of only the elements that are largest by magnitude.

    A chunk's largest elements are sent unchanged: the share `fraction`, and at least one. The others become
    zero. The payload has the indices of the sent elements, uint32 ascending, then their values, float32, both
    little-endian. This takes 8 bytes for each, so a fraction above a half would need more than float32. The
    error of an omitted element is its whole value, so use this codec only with error feedback.

    Raises CodecError for values that are not finite, because NaNs have no order.
    """

    name = "topk"

    def __init__(self, fraction: float = 0.05) -> None:
        if not 0.0 < fraction <= LARGEST_FRACTION:
            raise ValueError(
                f"topk_fraction: {fraction!r} given; give a number above 0 and at most {LARGEST_FRACTION}"
            )
        self._fraction = fraction

    def encode(self, values: Float32Array) -> Payload:
        """Return uint8 [8 * count], with `count` the number of elements sent."""
        count = self._count(len(values))
        payload = np.empty(8 * count, dtype=np.uint8)
        if not count:
            return payload
        sizes = np.abs(values)
        if not np.isfinite(sizes.max()):
            raise CodecError("topk: values are not finite")
        # This is several times as fast as `argpartition`.
        least = np.partition(sizes, len(values) - count)[len(values) - count]
        chosen = np.flatnonzero(sizes >= least)
        if len(chosen) > count:
            surplus = np.flatnonzero(sizes[chosen] == least)[count - len(chosen) :]
            chosen = np.delete(chosen, surplus)
        payload[: 4 * count].view("<u4")[:] = chosen
        np.take(values, chosen, out=payload[4 * count :].view("<f4"))
        return payload

    def decode(self, payload: Payload, elements: int) -> Float32Array:
        """Return the values; they take `4 / (8 * fraction)` times the payload's memory."""
        count = self._count(elements)
        if elements < 0 or payload.nbytes != 8 * count:
            raise CodecError(
                f"topk: the payload for {count} of {elements} elements has {payload.nbytes} bytes"
            )
        chosen = payload[: 4 * count].view("<u4").astype(np.int64)
        if count and (chosen[-1] >= elements or not np.all(chosen[1:] > chosen[:-1])):
            raise CodecError(f"topk: indices do not ascend, or are not below {elements}")
        kept_values = payload[4 * count :].view("<f4")
        if not np.isfinite(kept_values).all():
            raise CodecError("topk: values are not finite")
        values = np.zeros(elements, dtype="<f4")
        values[chosen] = kept_values
        return values

    def _count(self, elements: int) -> int:
        return min(elements, math.ceil(self._fraction * elements)) if elements > 0 else 0


@dataclass(frozen=True)
class CodecOptions:
    """Options of all codecs.

    Attributes:
        int8_block: number of elements in a block of int8.
        topk_fraction: fraction of the elements that topk sends.
    """

    int8_block: int = 1024
    topk_fraction: float = 0.05


CODECS: dict[str, Callable[[CodecOptions], Codec]] = {
    Float32.name: lambda _: Float32(),
    Sparse.name: lambda _: Sparse(),
    BFloat16.name: lambda _: BFloat16(),
    Float16.name: lambda _: Float16(),
    Int8.name: lambda options: Int8(options.int8_block),
    TopK.name: lambda options: TopK(options.topk_fraction),
}


# These encode each element by itself with a small error, so they need no error feedback.
STATELESS: tuple[str, ...] = (Float32.name, BFloat16.name, Float16.name)


def make_codec(name: str, options: CodecOptions | None = None) -> Codec:
    """Return the codec called `name`.

    Raises ValueError for an unknown name or an option that cannot be used.
    """
    if name not in CODECS:
        close = difflib.get_close_matches(name, CODECS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"give one of {', '.join(CODECS)}"
        raise ValueError(f"{name!r} is not a codec; {hint}")
    return CODECS[name](options or CodecOptions())


@dataclass(frozen=True)
class LinkCodecs:
    """The codecs of a link: `up` to the center or the reducer, `down` back."""

    up: Codec = field(default_factory=Float32)
    down: Codec = field(default_factory=Float32)


def _rows(flat: NDArray[Any], count: int) -> NDArray[Any]:
    """Return a view [count, block]; `count` may be 0."""
    return flat.reshape(count, len(flat) // count if count else 0)


def _quantize(values: Float32Array, scales: Float32Array, levels: NDArray[np.int8]) -> None:
    """Quantize values, float32 [n, block], into scales [n] and levels."""
    if not values.size:
        return
    most = np.maximum(values.max(axis=1), -values.min(axis=1))
    if not np.isfinite(most).all():
        raise CodecError("int8: values are not finite")
    np.minimum(most / np.float32(127), _LARGEST_SCALE, out=scales)
    scales[scales < _TINY] = 0
    with np.errstate(divide="ignore"):
        steps = np.where(scales > 0, np.float32(1) / scales, np.float32(0))
    scaled = values * steps[:, None]
    np.rint(scaled, out=scaled)
    np.clip(scaled, -127, 127, out=scaled)
    levels[...] = scaled
