"""One column of a chunk as Arrow has it, text or typed, made into numbers, moments, or rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..types import Float64Array, Int32Array, Mask, Uint64Array
from .arrow_columns import is_number, is_text, numbers_of, string_fields
from .decimals import parse_numbers
from .hashing import hash_bytes, hash_fields, hash_integers

# So many are a second.
_TICKS = {"s": 1.0, "ms": 1e3, "us": 1e6}


@dataclass(frozen=True, slots=True)
class TextRules:
    """How the text of a field is taken: which texts count as missing, and whether blanks around it go."""

    missing: tuple[str, ...] = ("",)
    strip: bool = False

    def clean(self, column: pa.Array) -> pa.Array:
        """The column with null where it is missing; a dictionary is decoded."""
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if not is_text(column.type):
            return column
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            column = column.cast(pa.large_binary()).view(pa.large_string())
        if self.strip:
            column = pc.ascii_trim_whitespace(column)
        gone = pc.is_in(column, value_set=pa.array(self.missing, column.type))
        return _without(column, gone.to_numpy(zero_copy_only=False)) if gone.true_count else column


def _without(column: pa.Array, gone: Mask) -> pa.Array:
    """A text column with null where `gone`, over the same texts."""
    kept = ~(gone | nulls(column))
    valid = np.packbits(np.concatenate([np.zeros(column.offset, np.bool_), kept]), bitorder="little")
    _, offsets, texts = column.buffers()
    buffers = [pa.py_buffer(valid), offsets, texts]
    return pa.Array.from_buffers(column.type, len(column), buffers, offset=column.offset)


def nulls(column: pa.Array) -> Mask:
    """bool [n]: which are null."""
    mask: Mask = column.is_null().to_numpy(zero_copy_only=False)
    return mask


def numbers(column: pa.Array) -> Float64Array:
    """float64 [n] of a cleaned column: 0.0 for nulls, NaN for what is no finite decimal number."""
    if not is_text(column.type):
        values = numbers_of(column, missing=0.0)
    else:
        try:
            values = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            # One of them is no number, or of a form that Arrow does not take: one by one, to the same values.
            buffer, starts, lengths = string_fields(column)
            values = parse_numbers(buffer, starts, lengths)
            values[lengths == 0] = np.nan
        if column.null_count:
            # Arrow's cast has NaN there.
            values = np.where(nulls(column), 0.0, values)
    return np.where(np.isfinite(values), values, np.nan)


def moments(column: pa.Array) -> Float64Array:
    """float64 [n] of a cleaned column: seconds since 1970 of times and dates, typed or in ISO 8601, without a
    zone UTC; numbers as they are; NaN for nulls and for everything else."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        values = _seconds(column)
    elif is_text(kind) or is_number(kind):
        values = np.where(nulls(column), np.nan, numbers(column))
        if is_text(kind):
            for at in np.flatnonzero(np.isnan(values) & ~nulls(column)).tolist():
                values[at] = _moment(column[at].as_buffer().to_pybytes())
    else:
        values = np.full(len(column), np.nan)
    return values


def _seconds(column: pa.Array) -> Float64Array:
    """float64 [n] of times or dates; nanoseconds are cut to microseconds, as texts have them."""
    date = pa.types.is_date32(column.type)
    filled = pc.fill_null(column.view(pa.int32() if date else pa.int64()), 0)
    ticks = filled.to_numpy(zero_copy_only=False)
    unit = "ms" if pa.types.is_date64(column.type) else getattr(column.type, "unit", "day")
    if unit == "ns":
        ticks, unit = ticks // 1000, "us"
    values: Float64Array = ticks * 86_400.0 if unit == "day" else ticks / _TICKS[unit]
    values[nulls(column)] = np.nan
    return values


def _moment(text: bytes) -> float:
    try:
        at = datetime.fromisoformat(text.decode("ascii"))
    except ValueError:
        return float("nan")
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def hashes(column: pa.Array, number: int) -> Uint64Array:
    """uint64 [n] of ids, texts or integers, of the empty text for nulls; `number` is the hash's `column`."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_text(column.type):
        buffer, starts, lengths = string_fields(column)
        return hash_fields(buffer, starts[None], lengths[None], number).reshape(-1)
    if column.null_count == len(column):
        return np.full(len(column), hash_bytes(number, b""), np.uint64)
    filled = pc.fill_null(column, pa.scalar(0, column.type)) if column.null_count else column
    h = hash_integers(number, filled.to_numpy(zero_copy_only=False))
    if column.null_count:
        h[nulls(column)] = hash_bytes(number, b"")
    return h


def bags(
    column: pa.Array, rules: TextRules, *, delimiter: str, max_ids: int, number: int
) -> tuple[Uint64Array, Int32Array]:
    """The bags of a cleaned column of delimited texts or of lists: hashes uint64 [N], lengths int32 [n].

    Ids that are missing are left out; of what is left a bag keeps its first `max_ids`. Null is an empty bag.
    """
    if pa.types.is_null(column.type):
        return np.zeros(0, np.uint64), np.zeros(len(column), np.int32)
    if is_text(column.type):
        column = pc.split_pattern(column, delimiter)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    ids = rules.clean(column.flatten())
    owners = np.repeat(np.arange(len(column)), lengths)
    here = ~nulls(ids)
    before = np.concatenate([[0], np.cumsum(here)])
    first = before[np.cumsum(lengths) - lengths]
    here &= before[:-1] - first[owners] < max_ids
    kept = ids.filter(pa.array(here))
    return hashes(kept, number), np.bincount(owners[here], minlength=len(column)).astype(np.int32)


def equals_any(column: pa.Array, values: Sequence[Any]) -> Mask:
    """bool [n] of a cleaned column: whether it is one of some texts, or of some numbers."""
    if all(isinstance(value, str) for value in values):
        text = column if is_text(column.type) else column.cast(pa.string())
        found = pc.is_in(text, value_set=pa.array(list(values), text.type))
        mask: Mask = found.to_numpy(zero_copy_only=False)
        return mask
    return np.isin(numbers(column), np.array([float(value) for value in values])) & ~nulls(column)
