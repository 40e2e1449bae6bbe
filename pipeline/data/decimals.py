"""Numbers from the bytes of text fields: short integers eight digits at a time, all else one by one."""

from __future__ import annotations

import math
import re

import numpy as np
from numpy.typing import NDArray

from ..types import IndexArray, Uint8Array, Uint64Array
from .hashing import unaligned_words

_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MINUS = np.uint64(ord("-"))


def parse_number(text: bytes) -> float:
    """A decimal number such as -3, 2.5 or 1e3; NaN for anything else, "nan", "inf" and overflow included."""
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else math.nan


def parse_numbers(buffer: Uint8Array, starts: IndexArray, lengths: IndexArray) -> NDArray[np.float64]:
    """The numbers in fields of a byte buffer, float64 of the shape of `starts`.

    An empty field is 0.0; one that is no number, as `parse_number` has it, is NaN.

    Args:
        buffer: uint8, C-contiguous, with PADDING_BYTES (of any content) after the last field.
        starts, lengths: int64, in bytes, of equal shape.

    Any thread; the GIL is held only for fields that are not integers of at most 8 characters.
    """
    words = unaligned_words(buffer)[starts]
    negative = ((words & np.uint64(0xFF)) == _MINUS) & (lengths > 1)
    words >>= negative.astype(np.uint64) << np.uint64(3)
    values, simple = _digits(words, lengths - negative)
    np.negative(values, out=values, where=negative)
    simple &= lengths <= 8
    if not simple.all():
        for at in np.flatnonzero(~simple):
            start = int(starts.flat[at])
            values.flat[at] = parse_number(buffer[start : start + int(lengths.flat[at])].tobytes())
    return values


def _digits(words: Uint64Array, lengths: IndexArray) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Numbers of `lengths` (0 to 8) ASCII digits at the low end of each word, and which are only digits.

    The digits are moved to the high end, so that zeros lead, and neighbours are added up in three steps (the
    well-known SWAR way; Lemire, "Quickly parsing eight digits", 2018). Overwrites `words`.
    """
    unused_bits = (np.maximum(8 - lengths, 0) << 3).astype(np.uint64)
    words <<= unused_bits
    words ^= np.uint64(0x3030303030303030) << unused_bits
    # Adding 0x76 sets the high bit of a byte above 9; carries come only out of bytes that have it already.
    simple = ((words + np.uint64(0x7676767676767676)) | words) & np.uint64(0x8080808080808080) == 0
    for shift, factor, mask in (
        (8, 10, 0x00FF00FF00FF00FF),
        (16, 100, 0x0000FFFF0000FFFF),
        (32, 10_000, 0x00000000FFFFFFFF),
    ):
        words = (words * np.uint64(factor) + (words >> np.uint64(shift))) & np.uint64(mask)
    return words.astype(np.float64), simple
