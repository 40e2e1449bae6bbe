"""Conversion of text or Arrow columns to numbers, times and hashes.

Each function converts one column of a chunk to NumPy arrays. Short integers in text fields are parsed eight
digits at a time, all other numbers one by one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...types import Float64Array, IndexArray, Mask, Uint8Array, Uint64Array
from ..hashing import PADDING_BYTES, hash_bytes, hash_fields, hash_integers, unaligned_words

_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MINUS = np.uint64(ord("-"))

# Sets of ids, because a served request asks many times.
_TEXT_IDS = {
    kind.id
    for kind in (
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
    )
}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a dictionary's values, or the type itself."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def decoded(column: pa.Array) -> pa.Array:
    """Return a dictionary's values one by one, any other column as it is."""
    if not pa.types.is_dictionary(column.type):
        return column
    if pa.types.is_string_view(column.type.value_type) or pa.types.is_binary_view(column.type.value_type):
        # Categories of polars; Arrow cannot decode views.
        values = column.dictionary.cast(pa.large_binary()).view(pa.large_string())
        column = pa.DictionaryArray.from_arrays(column.indices, values)
    return column.dictionary_decode()


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of this type are strings or bytes."""
    return kind.id in _TEXT_IDS


def is_number(kind: pa.DataType) -> bool:
    """Return whether values of this type are integers, floats, decimals or booleans."""
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return any(check(kind) for check in checks)


def display_bytes(value: pa.Scalar) -> bytes:
    """Return a value as it is shown to a user.

    Text that is not UTF-8 is returned as it is.
    """
    if pa.types.is_dictionary(value.type):
        value = value.value
    if is_text(value.type) and value.is_valid:
        return bytes(value.as_buffer())
    try:
        return str(value).encode("utf-8", "replace")
    except (ValueError, OverflowError):
        if pa.types.is_list(value.type) or pa.types.is_large_list(value.type):
            # A list with a text that is not UTF-8.
            return b"[" + b", ".join(display_bytes(item) for item in value) + b"]"
        return bytes(plain_times(value).cast(pa.string()).as_buffer())


def plain_times(values: Any) -> Any:
    """Return times without a zone, whose name may be unknown to this machine; an array or a scalar.

    Arrow makes texts of them also where Python has no such date: before year 1, after 9999, of nanoseconds.
    """
    return values.cast(pa.timestamp(values.type.unit)) if pa.types.is_timestamp(values.type) else values


def as_unicode(column: pa.Array) -> pa.Array:
    """Return texts or bytes as texts for polars, which does not check them and ends the process.

    What is not UTF-8 becomes escapes, so that different values stay apart.
    """
    column = column.cast(pa.large_binary())
    try:
        return column.cast(pa.large_string())
    except pa.ArrowInvalid:
        texts = [None if raw is None else raw.decode(errors="backslashreplace") for raw in column.to_pylist()]
        return pa.array(texts, pa.large_string())


def without_nan(column: pa.Array) -> pa.Array:
    """Return the column with decimals as floats, and nulls for NaN."""
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)


def to_float64(column: pa.Array, missing: float) -> NDArray[np.float64]:
    """Return integers, floats or booleans as float64 [n], `missing` for nulls."""
    if pa.types.is_null(column.type):
        return np.full(len(column), missing)
    if not column.null_count:
        whole: NDArray[np.float64] = column.to_numpy(zero_copy_only=False).astype(np.float64)
        return whole
    filled = pc.fill_null(column, pa.scalar(0).cast(column.type))
    values: NDArray[np.float64] = filled.to_numpy(zero_copy_only=False).astype(np.float64)
    values[column.is_null().to_numpy(zero_copy_only=False)] = missing
    return values


def string_fields(column: pa.Array) -> tuple[Uint8Array, IndexArray, IndexArray]:
    """Return a string column's bytes, padded, and each value's start and length.

    The bytes are uint8, the starts and lengths int64 [n] in bytes. Nulls have length 0.
    """
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.large_binary())
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, raw_offsets, raw_data = column.buffers()
    all_offsets: NDArray[Any] = np.frombuffer(raw_offsets, np.int64 if wide else np.int32)
    offsets: IndexArray = all_offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    buffer = np.zeros(last - first + PADDING_BYTES, np.uint8)
    if last > first:
        buffer[: last - first] = np.frombuffer(raw_data, np.uint8)[first:last]
    lengths: IndexArray = np.diff(offsets)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return buffer, offsets[:-1] - first, lengths


def parse_number(text: bytes) -> float:
    """Parse a decimal number such as -3, 2.5 or 1e3.

    Returns NaN for anything else, also for "nan", "inf" and a number that overflows.
    """
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else math.nan


def parse_numbers(buffer: Uint8Array, starts: IndexArray, lengths: IndexArray) -> NDArray[np.float64]:
    """Return the numbers in fields of a byte buffer.

    The result is float64 of the shape of `starts`. An empty field is 0.0; a field that `parse_number` rejects
    is NaN. Any thread may call. The GIL is held only for fields that are not integers of at most 8
    characters.

    Args:
        buffer: uint8, C-contiguous, with PADDING_BYTES (of any content) after the last field.
        starts, lengths: int64, in bytes, of equal shape.
    """
    words = unaligned_words(buffer)[starts]
    negative = ((words & np.uint64(0xFF)) == _MINUS) & (lengths > 1)
    words >>= negative.astype(np.uint64) << np.uint64(3)
    values, simple = _digits(words, lengths - negative)
    np.negative(values, out=values, where=negative)
    simple &= lengths <= 8
    if not simple.all():
        for index in np.flatnonzero(~simple):
            start = int(starts.flat[index])
            values.flat[index] = parse_number(buffer[start : start + int(lengths.flat[index])].tobytes())
    return values


@dataclass(frozen=True, slots=True)
class TextRules:
    """Which texts count as missing, whether blanks are stripped, and the decimal separator."""

    missing: tuple[str, ...] = ("",)
    strip: bool = False
    decimal: Literal[".", ","] = "."

    def clean(self, column: pa.Array) -> pa.Array:
        """Return the column with nulls for missing values and NaN; decode a dictionary.

        A number is missing if one of the missing texts is the same number.
        """
        column = decoded(column)
        if not is_text(column.type):
            return self._without_missing(without_nan(column))
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            column = column.cast(pa.large_binary()).view(pa.large_string())
        if self.strip:
            column = pc.ascii_trim_whitespace(column)
        gone = pc.is_in(column, value_set=pa.array(_texts_of(self), column.type))
        return _with_nulls(column, gone.to_numpy(zero_copy_only=False)) if gone.true_count else column

    def number(self, text: str) -> float:
        """Return the number that a text is, NaN for another text."""
        return float(self.numbers(pa.array([text]))[0])

    def _without_missing(self, column: pa.Array) -> pa.Array:
        if not is_number(column.type) or not (gone := _numbers_of(self)):
            return column
        is_missing = np.isin(to_float64(column, missing=np.nan), _as_carried(gone, column.type))
        return pc.if_else(pa.array(is_missing), pa.scalar(None, column.type), column)

    def numbers(self, column: pa.Array) -> Float64Array:
        """Return the numbers of a cleaned column; see `parse_number_column`."""
        if self.decimal == "," and is_text(column.type):
            # A point would be read as a decimal one, and may have separated thousands.
            column = pc.replace_substring(pc.replace_substring(column, ".", "?"), ",", ".")
        return parse_number_column(column)


@lru_cache
def _texts_of(rules: TextRules) -> tuple[str, ...]:
    """Return the missing texts, and other texts of the same numbers."""
    numbers = _numbers_of(rules)
    texts = [str(number) for number in numbers]
    texts += [str(int(number)) for number in numbers if number.is_integer()]
    return (*rules.missing, *(text.replace(".", rules.decimal) for text in texts))


def _as_carried(numbers: Sequence[float], kind: pa.DataType) -> list[float]:
    """Return the numbers rounded to the type of a column."""
    if not pa.types.is_floating(kind):
        return list(numbers)
    return pa.array(numbers, pa.float64()).cast(kind, safe=False).cast(pa.float64()).to_pylist()  # type: ignore[no-any-return]


@lru_cache
def _numbers_of(rules: TextRules) -> tuple[float, ...]:
    """Return the numbers among the missing texts."""
    numbers = [rules.number(text.strip() if rules.strip else text) for text in rules.missing if text]
    return tuple(number for number in numbers if not math.isnan(number))


def null_mask(column: pa.Array) -> Mask:
    """Return bool [n]: which values are null."""
    mask: Mask = column.is_null().to_numpy(zero_copy_only=False)
    return mask


def parse_number_column(column: pa.Array) -> Float64Array:
    """Return the numbers of a cleaned column, float64 [n].

    A null is 0.0; anything else that is not a finite decimal number is NaN.
    """
    if not is_text(column.type):
        values = to_float64(column, missing=0.0)
    else:
        try:
            values = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            # Some text is no number, or in a form that Arrow refuses. This parses each field by itself, to
            # the same values.
            buffer, starts, lengths = string_fields(column)
            values = parse_numbers(buffer, starts, lengths)
            values[lengths == 0] = np.nan
        if column.null_count:
            # Arrow's cast makes NaN of nulls.
            values = np.where(null_mask(column), 0.0, values)
    return np.where(np.isfinite(values), values, np.nan)


def hash_ids(column: pa.Array, number: int) -> Uint64Array:
    """Return the hashes of ids, uint64 [n].

    Ids are texts or integers; nulls hash as the empty text. `number` is the hash's `column`.
    """
    column = decoded(column)
    if is_text(column.type):
        buffer, starts, lengths = string_fields(column)
        return hash_fields(buffer, starts[None], lengths[None], [number]).reshape(-1)
    if column.null_count == len(column):
        return np.full(len(column), hash_bytes(number, b""), np.uint64)
    filled = pc.fill_null(column, pa.scalar(0, column.type)) if column.null_count else column
    h = hash_integers(number, filled.to_numpy(zero_copy_only=False))
    if column.null_count:
        h[null_mask(column)] = hash_bytes(number, b"")
    return h


def equals_any(column: pa.Array, values: Sequence[Any], rules: TextRules) -> Mask:
    """Return bool [n]: which values of a cleaned column are in `values`; see `compared`."""
    return compared(column, values, rules)[0]


def compared(column: pa.Array, values: Sequence[Any], rules: TextRules) -> tuple[Mask, Mask]:
    """Compare a cleaned column with texts, numbers or truth values.

    Returns bool [n], which values are among `values`, and bool [n], which ones could be. The same number is
    equal, whatever carries it: 1, 1.0, "1", "1.0" and true; and so are true and the text "true" in any case.
    If `values` has texts, each text could be; otherwise only what is a number, or true or false.
    """
    texts = [value for value in values if isinstance(value, str)]
    numbers = [rules.number(value) if isinstance(value, str) else float(value) for value in values]
    words = {"true": 1.0, "false": 0.0}
    if pa.types.is_boolean(column.type):
        numbers += [words[text.lower()] for text in texts if text.lower() in words]
    numbers = [number for number in numbers if not math.isnan(number)]
    equal, possible = np.zeros(len(column), np.bool_), np.zeros(len(column), np.bool_)
    if is_text(column.type):
        equal |= _true(pc.is_in(column, value_set=pa.array(texts, column.type)))
        possible |= bool(texts)
    if numbers:
        seen = rules.numbers(column)
        if is_text(column.type) and any(isinstance(value, bool) for value in values):
            lower = pc.ascii_lower(column)
            for word, number in words.items():
                seen[_true(pc.equal(lower, word))] = number
        equal |= np.isin(seen, _as_carried(numbers, column.type))
        possible |= ~np.isnan(seen)
    present = ~null_mask(column)
    return equal & present, possible & present


def _true(column: pa.Array) -> Mask:
    mask: Mask = pc.fill_null(column, False).to_numpy(zero_copy_only=False)
    return mask


def _digits(words: Uint64Array, lengths: IndexArray) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the numbers in words of ASCII digits, and which are valid.

    A word holds `lengths` characters, up to 8, at its low end; it is valid if all are digits. Overwrites
    `words`.

    The digits are moved to the high end, so that zeros lead. Neighbours are then added up in three steps
    (SWAR; Lemire, "Quickly parsing eight digits", 2018).
    """
    unused_bits = (np.maximum(8 - lengths, 0) << 3).astype(np.uint64)
    words <<= unused_bits
    words ^= np.uint64(0x3030303030303030) << unused_bits
    # Adding 0x76 sets the high bit of each byte above 9. Only bytes with that bit already set can carry.
    simple = ((words + np.uint64(0x7676767676767676)) | words) & np.uint64(0x8080808080808080) == 0
    for shift, factor, mask in (
        (8, 10, 0x00FF00FF00FF00FF),
        (16, 100, 0x0000FFFF0000FFFF),
        (32, 10_000, 0x00000000FFFFFFFF),
    ):
        words = (words * np.uint64(factor) + (words >> np.uint64(shift))) & np.uint64(mask)
    return words.astype(np.float64), simple


def _with_nulls(column: pa.Array, gone: Mask) -> pa.Array:
    """Return a text column with nulls where `gone`; its texts are not copied."""
    kept = ~(gone | null_mask(column))
    valid = np.packbits(np.concatenate([np.zeros(column.offset, np.bool_), kept]), bitorder="little")
    _, offsets, texts = column.buffers()
    buffers = [pa.py_buffer(valid), offsets, texts]
    return pa.Array.from_buffers(column.type, len(column), buffers, offset=column.offset)
