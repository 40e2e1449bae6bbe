"""Parquet input: reading rows, checking columns, and the class of ids.

Click logs have columns `label`, `I1`, `I2`, ... and `C1`, `C2`, ...; other files have the columns of a
schema. Files are read in bounded memory. Text ids and integer ids are hashed differently, so a column must
have one class of ids in all files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...config.columns import ColumnSection, column_fault
from ...errors import DataError
from ..bad_rows import BadRows
from ..columns.fields import hash_ids, is_number, is_text, null_mask, plain_type, to_float64, without_nan
from ..columns.kinds.registry import VALUES
from ..columns.record_schema import RecordSchema
from ..files.paths import EmptyFile, open_for_arrow, read_errors
from ..hashing import table_rows_of
from ..schema import LABEL, ColumnObserver, Examples, FeatureShape, log_transform
from ..span import Span

IdClass: TypeAlias = Literal["text", "integer"]

BATCH_ROWS = 16_384
"""Most rows that are decoded at once."""
_BATCH_BYTES = 4 << 20
_BUFFER_BYTES = 1 << 18
PREPARED_KEY: Final = b"shadowsync.order"
"""Key in the metadata of each part of a prepared folder; its value is the preparation's digest."""
_REMEDY = "name the columns of [data.columns] as the file does, or change their kinds"


def id_class(kind: pa.DataType) -> IdClass | None:
    """Return the class of a column's ids or lists of ids.

    Returns None for a type without ids, and for a column of nulls only.
    """
    kind = plain_type(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = plain_type(kind.value_type)
    if is_text(kind):
        return "text"
    return "integer" if pa.types.is_integer(kind) else None


class IdClasses:
    """The class of each column's ids in all inspected files.

    Used by one thread at a time.
    """

    def __init__(self) -> None:
        self._classes: dict[str, tuple[IdClass, str]] = {}

    @property
    def by_column(self) -> dict[str, IdClass]:
        """Return the class of each column that has one."""
        return {name: ids for name, (ids, _) in self._classes.items()}

    def add_known(self, classes: Mapping[str, IdClass], where: str) -> None:
        """Add classes that are known without inspecting files; `where` is their source."""
        self._classes |= {name: (ids, where) for name, ids in classes.items()}

    def add(self, path: str, name: str, kind: pa.DataType, sharing: Sequence[str] = ()) -> None:
        """Add a file's column of this type; `sharing` are all columns of its table.

        Raises DataError if an earlier file, or another column of the table, has the other class.
        """
        new = id_class(kind)
        if new is None:
            return
        first, where = self._classes.setdefault(name, (new, path))
        if first != new:
            raise DataError(
                f"column {name} has {new} ids, but {first} ids in {where}: the same value would get two "
                "different table rows",
                where=path,
                remedy=f"give {name} one type in all files of data.path, validation_path and eval_path",
            )
        for other in sharing:
            theirs, where = self._classes.get(other, (new, path))
            if theirs != new:
                raise DataError(
                    f"column {name} has {new} ids, and column {other}, with the same table, {theirs} ids in"
                    f" {where}: the same value would get two different table rows",
                    where=path,
                    remedy=f"write both as texts or both as integers, or give {name} a table of its own",
                )


@dataclass(frozen=True)
class RowGroups:
    """Rows and bytes on disk of each row group of a file."""

    rows: list[int]
    sizes_bytes: list[int]


@contextmanager
def open_parquet(path: str, **options: Any) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file; raises DataError as `read_errors` does.

    Times of 96 bits are microseconds: as nanoseconds those after 2262 would wrap around.
    """
    with (
        read_errors(path),
        open_for_arrow(path) as source,
        pq.ParquetFile(source, coerce_int96_timestamp_unit="us", **options) as file,
    ):
        yield file


def column_names(path: str) -> list[str]:
    """Return the names of a Parquet file's columns, in order.

    Raises DataError when the file is not Parquet.
    """
    with open_parquet(path) as file:
        names: list[str] = file.schema_arrow.names
    return names


def row_groups(path: str, check: Callable[[Any], None]) -> RowGroups:
    """Read the row groups' sizes from the footer of a Parquet file.

    Calls `check` with the file's Arrow schema. Raises DataError when the file is not Parquet or has no rows,
    and what `check` raises.
    """
    with open_parquet(path) as file:
        check(file.schema_arrow)
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        sizes = [
            sum(group.column(index).total_compressed_size for index in range(group.num_columns))
            for group in groups
        ]
        rows = [group.num_rows for group in groups]
    if not sum(rows):
        raise EmptyFile(path, "has no rows")
    return RowGroups(rows, sizes)


def check_click_columns(
    path: str, schema: pa.Schema, shape: FeatureShape, ids: IdClasses | None = None
) -> None:
    """Raise DataError unless a file has the columns and types of `shape`.

    `ids` records the class of each column's ids. With it, ids of another class than in an earlier file raise
    DataError too.
    """
    present = ", ".join(schema.names[:50]) + (", ..." if len(schema.names) > 50 else "")
    remedy = "rename its columns, or change data.dense_features and data.categorical_features"
    for name in [LABEL, *shape.dense_names, *shape.categorical_names]:
        times = schema.names.count(name)
        if times != 1:
            raise DataError(
                f"has {f'no column {name}' if times == 0 else f'column {name} {times} times'}; its columns "
                f"are {present}",
                where=path,
                remedy=remedy,
            )
        kind = schema.field(name).type
        if name in shape.categorical_names:
            plain = plain_type(kind)
            fits, needed = is_text(plain) or pa.types.is_integer(plain), "strings or integers"
        else:
            fits, needed = is_number(kind), "numbers"
        if not (fits or pa.types.is_null(kind)):
            raise DataError(f"column {name} has type {kind}, not {needed}", where=path, remedy=remedy)
        if ids is not None and name in shape.categorical_names:
            ids.add(path, name, kind)


def parquet_rows(
    span: Span, columns: Callable[[pa.Schema], list[str]], batch_rows: int | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of a span's row groups in decoded chunks.

    Each chunk comes with the number of rows of the file before it. `columns` returns the names of the columns
    to read from a file with this schema. `batch_rows` changes only the size of the chunks: None means at most
    BATCH_ROWS, fewer if rows are long. Memory holds one chunk, and one page and the dictionary of each
    column.

    Raises DataError when the file cannot be opened or decoded, or became shorter, and what `columns` raises.
    Other errors of the caller's loop pass through.
    """
    # With a buffer size Arrow reads pages as they are needed; without one, whole column chunks.
    with open_parquet(span.path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
        names = columns(file.schema_arrow)
        if span.stop > file.metadata.num_row_groups:
            raise DataError(
                f"has {file.metadata.num_row_groups} row groups; {span.stop} were planned",
                where=span.path,
                remedy="it changed since the job began: leave input files alone while a job runs",
            )
        done = sum(file.metadata.row_group(index).num_rows for index in range(span.start))
        groups = list(range(span.start, span.stop))
        at_once = batch_rows or rows_at_once(file.metadata, groups)
        for rows in file.iter_batches(at_once, row_groups=groups, columns=names, use_threads=False):
            yield done, rows
            done += len(rows)


def read_parquet(
    span: Span,
    shape: FeatureShape,
    bad_rows: BadRows,
    batch_rows: int | None = None,
    observer: ColumnObserver | None = None,
) -> Iterator[Examples]:
    """Yield the good rows of a span's row groups, in order.

    A row is good when its label is 0 or 1 and no dense value is infinite. Other rows go to `bad_rows`, with
    their number in the file, from 1, as the line. A dense value becomes sign(x) * log1p(|x|), a null or NaN
    0.0. Strings are hashed as their bytes, so a text file with the same values gives the same rows; integers
    as their 8 bytes, little-endian; null as the empty string.

    `batch_rows` and memory are as in `parquet_rows`. `observer` receives each chunk. Raises DataError when
    the file cannot be read, and past the limit of `bad_rows`.
    """

    def columns(schema: pa.Schema) -> list[str]:
        check_click_columns(span.path, schema, shape)
        return [LABEL, *shape.dense_names, *shape.categorical_names]

    for done, rows in parquet_rows(span, columns, batch_rows):
        yield _examples(rows, span.path, done, shape, bad_rows, observer)


def rows_at_once(metadata: Any, groups: list[int]) -> int:
    """Return how many rows to decode together, by the size that the file states."""
    of_groups = [metadata.row_group(index) for index in groups]
    row_bytes = max(group.total_byte_size // max(group.num_rows, 1) for group in of_groups)
    return int(max(1, min(BATCH_ROWS, _BATCH_BYTES // max(row_bytes, 1))))


def check_raw(path: str, arrow: Any) -> None:
    """Raise DataError for a part of a prepared folder.

    Read as raw input, its values would be hashed and transformed again.
    """
    if PREPARED_KEY in (arrow.metadata or {}):
        raise DataError(
            "belongs to a prepared folder: its values are hashed and transformed already",
            where=path,
            remedy="set data.prepared to its folder; to score, give the files that it was made from",
        )


def check_parquet(path: str, arrow: Any, schema: RecordSchema, ids: IdClasses | None = None) -> None:
    """Raise DataError for a missing, repeated or wrongly typed column.

    `ids` records the class of each column's ids. With it, ids of another class than in an earlier file raise
    DataError too.
    """
    for name, column in schema.data.columns.items():
        if not column.of_kind.is_read:
            continue
        source = schema.source_of(name)
        if source not in arrow.names and schema.may_lack(name):
            continue
        if fault := column_fault(source, arrow.names):
            raise DataError(f"has {fault}", where=path, remedy=_REMEDY)
        kind = plain_type(arrow.field(source).type)
        fits, needed = _fits(kind, column)
        if not (fits or pa.types.is_null(kind)):
            raise DataError(
                f"column {source} has type {kind}; {name} needs {needed}",
                where=path,
                remedy=_remedy(kind, column),
            )
        if column.weights:
            _check_weights(path, arrow, name, column.weights)
        if ids is not None and column.of_kind.hashes_values and not column.has_times:
            ids.add(path, name, kind, schema.columns_sharing(name))


def _remedy(kind: pa.DataType, column: ColumnSection) -> str:
    if pa.types.is_fixed_size_list(kind):
        return f"write the column as a list of any length: its type is then list<{kind.value_type}>"
    if pa.types.is_fixed_size_binary(kind) or isinstance(kind, pa.BaseExtensionType):
        return "write the column as texts: CAST(... AS VARCHAR) in SQL, .astype(str) in pandas"
    return VALUES[column.kind].remedy(kind) or _REMEDY


def _examples(
    rows: Any, path: str, done: int, shape: FeatureShape, bad_rows: BadRows, observer: ColumnObserver | None
) -> Examples:
    labels = to_float64(without_nan(rows.column(LABEL)), missing=np.nan)
    dense = np.empty((shape.dense, len(rows)))
    for index, name in enumerate(shape.dense_names):
        dense[index] = to_float64(without_nan(rows.column(name)), missing=0.0)
    valid = (labels == 0) | (labels == 1)
    # A finite sum has only finite terms, and is much faster to check.
    with np.errstate(over="ignore", invalid="ignore"):
        total = dense.sum()
    if not np.isfinite(total):
        valid &= np.isfinite(dense).all(axis=0)
    for row in np.flatnonzero(~valid).tolist():
        # The label if it is bad, otherwise the first number that is not finite.
        feature = -1 if labels[row] not in (0, 1) else int(np.isfinite(dense[:, row]).argmin())
        name, what = (
            (LABEL, "neither 0 nor 1") if feature < 0 else (shape.dense_names[feature], "not a finite number")
        )
        text = f"{name}={rows.column(name)[row].as_py()}"
        bad_rows.add(path, partial(int, done + row + 1), f"{name} is {what}", text.encode())
    table_rows = np.empty((shape.categorical, len(rows)), np.int32)
    keys = np.empty((len(shape.growing), len(rows) if shape.growing else 0), np.uint64)
    observed = {}
    for index, (name, count) in enumerate(zip(shape.categorical_names, shape.table_rows, strict=True)):
        # Column by column, so that the hashes stay in the cache until they are rows.
        column_hashes = hash_ids(rows.column(name), index)
        table_rows[index] = table_rows_of(column_hashes[None], (count,))
        if index in shape.growing:
            keys[shape.growing.index(index)] = column_hashes
        if observer is not None:
            observed[name] = column_hashes[valid]
    if observer is not None:
        observer.show(observed, {name: null_mask(rows.column(name))[valid] for name in shape.dense_names})
    if not valid.all():
        labels, dense, table_rows = labels[valid], dense[:, valid], np.compress(valid, table_rows, axis=1)
        keys = np.compress(valid, keys, axis=1) if shape.growing else keys
    numbers = np.ascontiguousarray(log_transform(dense).T)
    return Examples(labels.astype(np.float32), numbers, table_rows, keys=keys)


def _check_weights(path: str, arrow: Any, name: str, source: str) -> None:
    if fault := column_fault(source, arrow.names):
        raise DataError(f"has {fault}", where=path, remedy=f"correct data.columns.{name}.weights")
    kind = plain_type(arrow.field(source).type)
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    inner = plain_type(kind.value_type) if lists else kind
    number = lists and (is_number(inner) or pa.types.is_null(inner))
    if not (number or is_text(inner) or pa.types.is_null(kind)):
        raise DataError(
            f"column {source} has type {kind}; the weights of {name} need lists of numbers, or delimited"
            " texts",
            where=path,
            remedy=f"give data.columns.{name}.weights a column with a number for each id",
        )


def _fits(kind: pa.DataType, column: ColumnSection) -> tuple[bool, str]:
    if column.has_times:
        fits = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        return fits or is_number(kind) or is_text(kind), "times, dates, numbers or texts"
    values = VALUES[column.kind]
    return values.fits(kind), values.expected
