"""Columns of one type, handled together while they are short.

A request for scores has tens of columns with a few dozen rows. There most of the time goes into calls, not
into values, so that one call for many columns is several times faster. The columns of a large chunk are
handled one by one, because each fits the processor's cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from ...config.columns import ColumnSection
from ...types import Float32Array, Float64Array, Mask, Uint64Array
from ..hashing import hash_fields
from ..schema import log_transform
from .fields import TextRules, hash_ids, is_text, null_mask, string_fields

MOST_ROWS: Final = 1024
"""Columns with more rows are handled one by one."""
_MOST_BYTES: Final = 1 << 20
# Types that are equal if their ids are.
_PLAIN_TYPES: Final = frozenset(
    kind.id
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64(), pa.bool_()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    )
)


def are_short(columns: Mapping[str, pa.Array]) -> bool:
    """Return whether one call should handle many of these columns.

    All have the same number of rows.
    """
    rows = max((len(column) for column in columns.values()), default=0)
    return rows <= MOST_ROWS and sum(column.nbytes for column in columns.values()) <= _MOST_BYTES


def groups_of(columns: Mapping[str, pa.Array], together: bool) -> list[list[str]]:
    """Return the names of the columns to handle in one call.

    Groups have the order of their first columns. Unless `together`, each column is a group.
    """
    if not together:
        return [[name] for name in columns]
    groups: dict[object, list[str]] = {}
    for name, column in columns.items():
        kind = column.type.id
        groups.setdefault(kind if kind in _PLAIN_TYPES else name, []).append(name)
    return list(groups.values())


def joined(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the values of columns of one type, one column after the other."""
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)


def clean_columns(rules: TextRules, columns: Mapping[str, pa.Array], together: bool) -> dict[str, pa.Array]:
    """Return each column as `TextRules.clean` gives it, by name in the order of `columns`."""
    cleaned: dict[str, pa.Array] = dict.fromkeys(columns)
    for names in groups_of(columns, together):
        whole = rules.clean(joined([columns[name] for name in names]))
        count = len(columns[names[0]])
        for number, name in enumerate(names):
            cleaned[name] = whole.slice(number * count, count)
    return cleaned


def hash_id_columns(
    columns: Mapping[str, pa.Array], numbers: Mapping[str, int], together: bool
) -> dict[str, Uint64Array]:
    """Return the hashes of cleaned columns of ids, uint64 [n] each, as `hash_ids`.

    `numbers` has the hash's `column` of each.
    """
    hashes: dict[str, Uint64Array] = {}
    for names in groups_of(columns, together):
        if len(names) == 1 or not is_text(columns[names[0]].type):
            hashes |= {name: hash_ids(columns[name], numbers[name]) for name in names}
            continue
        buffer, starts, lengths = string_fields(joined([columns[name] for name in names]))
        shape = (len(names), -1)
        hashed = hash_fields(
            buffer, starts.reshape(shape), lengths.reshape(shape), [numbers[name] for name in names]
        )
        hashes |= dict(zip(names, hashed, strict=True))
    return hashes


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """A column of numbers.

    Attributes:
        seen: float32 [n], the numbers that a model sees; 0.0 where missing, infinite where beyond float32.
        missing: bool [n].
        wrong: bool [n], which values are not numeric.
    """

    seen: Float32Array
    missing: Mask
    wrong: Mask


def number_columns(
    rules: TextRules,
    columns: Mapping[str, pa.Array],
    sections: Mapping[str, ColumnSection],
    together: bool,
) -> dict[str, NumberColumn]:
    """Return cleaned columns as the numbers that a model sees."""
    numbers: dict[str, NumberColumn] = {}
    for names in groups_of(columns, together):
        whole = joined([columns[name] for name in names])
        values = rules.numbers(whole).reshape(len(names), -1)
        missing = null_mask(whole).reshape(values.shape)
        seen, wrong = scaled_numbers(values, missing, [sections[name] for name in names]), np.isnan(values)
        numbers |= {
            name: NumberColumn(seen[number], missing[number], wrong[number])
            for number, name in enumerate(names)
        }
    return numbers


def scaled_numbers(values: Float64Array, missing: Mask, sections: Sequence[ColumnSection]) -> Float32Array:
    """Return the numbers that a model sees, float32 [C, n], of C columns.

    The values, float64 [C, n], are shifted, scaled and transformed as the sections say. A missing one
    becomes 0.0, one beyond float32 infinite, and NaN counts as 0.
    """
    shifts = np.array([[section.shift] for section in sections])
    scales = np.array([[section.scale] for section in sections])
    logs = np.array([section.transform == "log" for section in sections])
    with np.errstate(over="ignore"):
        scaled = np.where(missing, 0.0, (np.nan_to_num(values) - shifts) / scales)
        if logs.all():
            return log_transform(scaled)
        seen: Float32Array = scaled.astype(np.float32)
        seen[logs] = log_transform(scaled[logs])
    return seen
