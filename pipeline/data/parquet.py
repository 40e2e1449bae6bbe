"""Parquet logs: columns `label`, `I1`, `I2`, ... and `C1`, `C2`, ..., read in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..errors import DataError
from .bad_rows import BadRows
from .hashing import (
    PADDING_BYTES,
    IndexArray,
    Uint8Array,
    Uint64Array,
    hash_bytes,
    hash_fields,
    hash_integers,
    table_rows_of,
)
from .schema import LABEL, Examples, FeatureShape, log_transform
from .sources import reading

if TYPE_CHECKING:
    from .spans import Span

BATCH_ROWS = 16_384
_BATCH_BYTES = 4 << 20
_BUFFER_BYTES = 1 << 18


@dataclass(frozen=True)
class RowGroups:
    """The row groups of a file: rows, and bytes on disk, of each."""

    rows: list[int]
    sizes_bytes: list[int]


def row_groups(path: str, shape: FeatureShape | None) -> RowGroups:
    """Looks at the end of a Parquet file.

    Raises DataError when it is not one, has no rows, or lacks a column of `shape` (None: any will do).
    """
    with reading(path), pq.ParquetFile(path) as file:
        if shape is not None:
            _check_columns(path, file.schema_arrow, shape)
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        sizes = [
            sum(group.column(index).total_compressed_size for index in range(group.num_columns))
            for group in groups
        ]
        rows = [group.num_rows for group in groups]
    if not sum(rows):
        raise DataError("has no rows", where=path, remedy="remove it from data.path, or fill it")
    return RowGroups(rows, sizes)


def _check_columns(path: str, schema: pa.Schema, shape: FeatureShape) -> None:
    present = ", ".join(schema.names[:50]) + (", ..." if len(schema.names) > 50 else "")
    remedy = "rename its columns, or change data.dense_features and data.categorical_features"
    for name in [LABEL, *shape.dense_names, *shape.categorical_names]:
        times = schema.names.count(name)
        if times != 1:
            raise DataError(
                f"has {'no' if times == 0 else f'{times} times'} column {name}; there are {present}",
                where=path,
                remedy=remedy,
            )
        kind = schema.field(name).type
        if name in shape.categorical_names:
            fits, wanted = _is_text(_plain(kind)) or pa.types.is_integer(_plain(kind)), "strings or integers"
        else:
            fits, wanted = _is_number(kind), "numbers"
        if not (fits or pa.types.is_null(kind)):
            raise DataError(f"column {name} holds {kind}, not {wanted}", where=path, remedy=remedy)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(check(kind) for check in binary + text)


def _is_number(kind: pa.DataType) -> bool:
    return any(check(kind) for check in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean))


def read_parquet(
    span: Span, shape: FeatureShape, bad_rows: BadRows, batch_rows: int | None = None
) -> Iterator[Examples]:
    """The good rows of row groups start to stop - 1, in order; `batch_rows` changes only their chunks.

    A row is good when its label is 0 or 1 and no dense value is NaN or infinite; the others go to `bad_rows`,
    with their row in the file, from 1, as the line. Dense: null -> 0.0, otherwise sign(x) * log1p(|x|). Ids:
    strings are hashed as their bytes, so a text file with the same values gives the same rows; integers as
    their 8 bytes, little-endian; null as the empty string. In memory are one page and the dictionary of each
    column and `batch_rows` rows (None: at most BATCH_ROWS, fewer where rows are long). Raises DataError when
    the file cannot be read, and past the limit of `bad_rows`.
    """
    names = [LABEL, *shape.dense_names, *shape.categorical_names]
    with (
        reading(span.path),
        # With a buffer size pages are read as they are needed; without one, whole column chunks.
        pq.ParquetFile(span.path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file,
    ):
        _check_columns(span.path, file.schema_arrow, shape)
        if span.stop > file.metadata.num_row_groups:
            raise DataError(
                f"has {file.metadata.num_row_groups} row groups, not {span.stop}",
                where=span.path,
                remedy="it changed since the job began: leave input files alone while a job runs",
            )
        done = sum(file.metadata.row_group(index).num_rows for index in range(span.start))
        groups = list(range(span.start, span.stop))
        at_once = batch_rows or _rows_at_once(file.metadata, groups)
        for rows in file.iter_batches(at_once, row_groups=groups, columns=names, use_threads=False):
            yield _examples(rows, span.path, done, shape, bad_rows)
            done += len(rows)


def _rows_at_once(metadata: Any, groups: list[int]) -> int:
    """How many rows to decode together, from the uncompressed size that the file states of them."""
    of_groups = [metadata.row_group(index) for index in groups]
    row_bytes = max(group.total_byte_size // max(group.num_rows, 1) for group in of_groups)
    return int(max(1, min(BATCH_ROWS, _BATCH_BYTES // max(row_bytes, 1))))


def _examples(rows: Any, path: str, done: int, shape: FeatureShape, bad_rows: BadRows) -> Examples:
    labels = _numbers(rows.column(LABEL), missing=np.nan)
    dense = np.empty((shape.dense, len(rows)))
    for index, name in enumerate(shape.dense_names):
        dense[index] = _numbers(rows.column(name), missing=0.0)
    valid = ((labels == 0) | (labels == 1)) & np.isfinite(dense).all(axis=0)
    for row in np.flatnonzero(~valid).tolist():
        name, wanted = LABEL, "neither 0 nor 1"
        if labels[row] in (0, 1):
            name, wanted = shape.dense_names[int(np.isfinite(dense[:, row]).argmin())], "not a finite number"
        text = f"{name}={rows.column(name)[row].as_py()}"
        bad_rows.add(path, partial(int, done + row + 1), f"{name} is {wanted}", text.encode())
    hashes = np.empty((shape.categorical, len(rows)), np.uint64)
    for index, name in enumerate(shape.categorical_names):
        hashes[index] = _hashes(rows.column(name), index)
    table_rows = table_rows_of(hashes, shape.table_rows)
    if not valid.all():
        labels, dense, table_rows = labels[valid], dense[:, valid], np.compress(valid, table_rows, axis=1)
    return Examples(labels.astype(np.float32), np.ascontiguousarray(log_transform(dense).T), table_rows)


def _numbers(column: pa.Array, missing: float) -> NDArray[np.float64]:
    """Integers, floats or booleans as float64 [n], `missing` for nulls."""
    if pa.types.is_null(column.type):
        return np.full(len(column), missing)
    zero = pa.scalar(0).cast(column.type)
    filled = pc.fill_null(column, zero) if column.null_count else column
    values: NDArray[np.float64] = filled.to_numpy(zero_copy_only=False).astype(np.float64)
    if column.null_count:
        values[column.is_null().to_numpy(zero_copy_only=False)] = missing
    return values


def _hashes(column: pa.Array, table: int) -> Uint64Array:
    """Hashes of strings, bytes or integers, uint64 [n]; of the empty string for nulls."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if _is_text(column.type):
        buffer, starts, lengths = _string_fields(column)
        return hash_fields(buffer, starts[None], lengths[None], table).reshape(-1)
    missing = column.is_null().to_numpy(zero_copy_only=False)
    if missing.all():
        return np.full(len(column), hash_bytes(table, b""), np.uint64)
    filled = pc.fill_null(column, pa.scalar(0, column.type)) if column.null_count else column
    values = filled.to_numpy(zero_copy_only=False)
    h = hash_integers(table, values if values.dtype == np.uint64 else values.astype(np.int64))
    h[missing] = hash_bytes(table, b"")
    return h


def _string_fields(column: pa.Array) -> tuple[Uint8Array, IndexArray, IndexArray]:
    """The bytes of a string column, padded, and where each value lies; nulls have length 0."""
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
