"""The codecs: encoding of float32 values as bytes, chunk by chunk.

Codecs have no state. What a lossy codec loses is fed back by the caller, see `feedback`.

- `float32`: the values as they are;
- `sparse`: only the values that are not 0;
- `bfloat16`: the upper half of each float32;
- `int8`, `int4`, `int2`: few bits an element and one scale a block, see `blocks`;
- `topk`: only the largest elements, in few bits, see `topk`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..types import Float32Array
from .blocks import Int2, Int4, Int8
from .codec import Codec as Codec
from .codec import CodecError as CodecError
from .codec import Payload as Payload
from .topk import TopK

# Elements that bfloat16 converts at once, so that intermediate values stay in the CPU's fastest cache.
_BLOCK = 1 << 14


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


@dataclass(frozen=True)
class CodecOptions:
    """Options of all codecs.

    Attributes:
        int8_block: number of elements in a block of int8.
        topk_fraction: fraction of the elements that topk sends.
        topk_bits: bits of each of them.
    """

    int8_block: int = 1024
    topk_fraction: float = 0.05
    topk_bits: int = 2


CODECS: dict[str, Callable[[CodecOptions], Codec]] = {
    Float32.name: lambda _: Float32(),
    Sparse.name: lambda _: Sparse(),
    BFloat16.name: lambda _: BFloat16(),
    Int8.name: lambda options: Int8(options.int8_block),
    Int4.name: lambda _: Int4(),
    Int2.name: lambda _: Int2(),
    TopK.name: lambda options: TopK(options.topk_fraction, options.topk_bits),
}


# These encode each element by itself with a small error, so they need no error feedback.
STATELESS: tuple[str, ...] = (Float32.name, BFloat16.name)


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
