"""Reading of a prepared folder's parts as examples, and checks of their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import DataError
from ...types import Int32Array, Uint64Array, is_finite
from ..batch import Bags, no_groups, no_keys, no_other_labels, no_weights
from ..files.paths import file_size_bytes, open_for_arrow, open_raw, read_errors
from ..formats.parquet import PREPARED_KEY
from ..formats.records import RecordChunk
from ..hashing import table_rows_of
from ..schema import Examples
from .manifest import PreparedColumn, PreparedManifest, PreparedPart, in_folder, read_prepared

REMEDY: Final = "copy the folder anew, or prepare it again with --force"
ROW_GROUP_ROWS: Final = 1 << 16
STORED_TYPES: Final = {
    "float32": pa.float32(),
    "float64": pa.float64(),
    "int32": pa.int32(),
    "uint64": pa.uint64(),
    "list<uint64>": pa.list_(pa.field("element", pa.uint64(), nullable=False)),
    "list<int32>": pa.list_(pa.field("element", pa.int32(), nullable=False)),
    "list<float32>": pa.list_(pa.field("element", pa.float32(), nullable=False)),
}

_PIECE_BYTES = 1 << 22


def part_schema(columns: Sequence[PreparedColumn], order_digest: str) -> Any:
    """Return the Arrow schema of every part of a preparation."""
    fields = [pa.field(column.name, STORED_TYPES[column.stored], nullable=False) for column in columns]
    return pa.schema(fields, metadata={PREPARED_KEY: order_digest.encode()})


def read_part(
    path: str, part: PreparedPart, manifest: PreparedManifest, table_rows: Mapping[str, int]
) -> Iterator[RecordChunk]:
    """Yield the rows of a part in order, one row group at a time.

    `table_rows` has the rows of the growing table of each column of which the folder has only keys.

    Memory holds a row group once as columns and once as examples. Whole row groups are yielded because
    shuffling need not join a window that is one chunk.

    Each page's CRC is compared. Raises DataError for a file that cannot be read or was altered, belongs to
    another preparation, or has a number of rows that the manifest does not state, and for a row number that
    its table does not have, a label other than 0 and 1, or a number that is not finite.
    """
    columns = manifest.columns
    done = 0
    with (
        read_errors(path),
        open_for_arrow(path) as source,
        pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False) as file,
    ):
        _check_schema(path, file, part, manifest)
        for group, rows in enumerate(file.iter_batches(ROW_GROUP_ROWS, use_threads=False)):
            where = f"{path}, row group {group}"
            _check_rows(where, rows, columns)
            _check_numbers(where, rows, columns)
            _check_weights(where, rows, columns)
            done += len(rows)
            yield _chunk(rows, columns, table_rows)
    if done != part.rows:
        raise DataError(f"has {done} rows; its manifest states {part.rows}", where=path, remedy=REMEDY)


def verify_folder(folder: str) -> PreparedManifest:
    """Read all parts, compare size and SHA-256 with the manifest, and return the manifest.

    Raises DataError for the first part that differs, is absent or cannot be read.
    """
    manifest = read_prepared(folder)
    for part in manifest.parts:
        path = in_folder(folder, part.name)
        digest = hashlib.sha256()
        with read_errors(path), open_raw(path) as file:
            size = file_size_bytes(path)
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
        if size is not None and size != part.bytes:
            raise DataError(f"has {size} bytes; its manifest states {part.bytes}", where=path, remedy=REMEDY)
        if digest.hexdigest() != part.sha256:
            raise DataError("was altered: its SHA-256 is not that of the manifest", where=path, remedy=REMEDY)
    return manifest


def _check_schema(path: str, file: Any, part: PreparedPart, manifest: PreparedManifest) -> None:
    digest = (file.schema_arrow.metadata or {}).get(PREPARED_KEY, b"").decode("ascii", "replace")
    if digest != manifest.order_digest:
        raise DataError("belongs to another preparation than its manifest", where=path, remedy=REMEDY)
    want = part_schema(manifest.columns, manifest.order_digest)
    if not file.schema_arrow.equals(want) or file.metadata.num_rows != part.rows:
        raise DataError(
            f"has {file.metadata.num_rows} rows of {len(file.schema_arrow)} columns; its manifest states "
            f"{part.rows} rows of {len(want)} columns, or other types",
            where=path,
            remedy=REMEDY,
        )


def _check_rows(where: str, batch: Any, columns: Sequence[PreparedColumn]) -> None:
    for column, values in zip(columns, batch.columns, strict=True):
        if column.table_rows is None or column.has_keys:
            continue
        rows: Int32Array = (values.flatten() if column.kind == "multi_hot" else values).to_numpy()
        # As unsigned numbers, negative row numbers are too large.
        if len(rows) and int(rows.view(np.uint32).max()) >= column.table_rows:
            raise DataError(
                f"column {column.name} has a row number beyond its table of {column.table_rows} rows",
                where=where,
                remedy=REMEDY,
            )


def _check_numbers(where: str, batch: Any, columns: Sequence[PreparedColumn]) -> None:
    """Raise DataError for a value that no source gives: a trainer would take its reader for a liar."""
    for column, array in zip(columns, batch.columns, strict=True):
        if column.kind not in ("label", "dense", "weight", "timestamp"):
            continue
        values = array.to_numpy()
        if column.kind == "label":
            right, what = (values == 0) | (values == 1), "a label that is neither 0 nor 1"
        elif is_finite(values) and (column.kind != "weight" or not len(values) or values.min() >= 0):
            continue
        else:
            least = 0 if column.kind == "weight" else -np.inf
            right, what = np.isfinite(values) & (values >= least), "a number that is not finite, or below 0"
        if not right.all():
            row = int(np.argmin(right))
            raise DataError(
                f"column {column.name} has {what}: {values[row]} in row {row} of these",
                where=where,
                remedy=REMEDY,
            )


def _check_weights(where: str, batch: Any, columns: Sequence[PreparedColumn]) -> None:
    """Raise DataError unless each id has a weight that is finite and not negative."""
    arrays = {column.name: values for column, values in zip(columns, batch.columns, strict=True)}
    for column in columns:
        if column.kind != "item_weights":
            continue
        weights, ids = arrays[column.name], arrays[column.name.removesuffix(":weights")]
        values = weights.flatten().to_numpy()
        same = np.array_equal(np.diff(weights.offsets.to_numpy()), np.diff(ids.offsets.to_numpy()))
        if not (same and np.isfinite(values).all() and (values >= 0).all()):
            raise DataError(
                f"column {column.name} has not one weight of at least 0 for each id",
                where=where,
                remedy=REMEDY,
            )


def _chunk(batch: Any, columns: Sequence[PreparedColumn], table_rows: Mapping[str, int]) -> RecordChunk:
    kinds: dict[str, list[tuple[PreparedColumn, Any]]] = {}
    for column, values in zip(columns, batch.columns, strict=True):
        kinds.setdefault(column.kind, []).append((column, values))
    arrays = {kind: [values for _, values in pairs] for kind, pairs in kinds.items()}
    ids = [_Ids.of(*pairs, table_rows) for pairs in kinds.get("categorical", [])]
    bags = {column.name: values for column, values in kinds.get("multi_hot", [])}
    bag_ids = [
        _Ids.of(column, ids_of_column.flatten(), table_rows)
        for column, ids_of_column in kinds.get("multi_hot", [])
    ]
    weights_of = {
        column.name.removesuffix(":weights"): ids_of_column
        for column, ids_of_column in kinds.get("item_weights", [])
    }
    labels, dense = arrays["label"], np.empty((len(batch), len(arrays.get("dense", []))), np.float32)
    for number, values in enumerate(arrays.get("dense", [])):
        dense[:, number] = values.to_numpy()
    rows = np.empty((len(ids), len(batch)), np.int32)
    for number, ids_of_column in enumerate(ids):
        rows[number] = ids_of_column.rows
    keys = [ids_of_column.keys for ids_of_column in ids if ids_of_column.keys is not None]
    weights = arrays["weight"][0].to_numpy() if "weight" in arrays else no_weights()
    times = arrays["timestamp"][0].to_numpy() if "timestamp" in arrays else np.zeros(0)
    joined = Bags.of_tables(
        [ids_of_column.rows for ids_of_column in bag_ids],
        [np.diff(values.offsets.to_numpy()).astype(np.int32) for values in bags.values()],
        [weights_of[name].flatten().to_numpy() if name in weights_of else None for name in bags],
        [ids_of_column.keys for ids_of_column in bag_ids],
    )
    others = np.stack([array.to_numpy() for array in labels[1:]]) if labels[1:] else no_other_labels()
    examples = Examples(
        labels[0].to_numpy(),
        dense,
        rows,
        weights,
        joined,
        others,
        np.stack(keys) if keys else no_keys(),
        np.stack([array.to_numpy() for array in arrays["group"]]) if "group" in arrays else no_groups(),
    )
    return RecordChunk(examples, times)


class _Ids(NamedTuple):
    """The rows of a column, int32 [n].

    Of a growing table also their keys, uint64 [n].
    """

    rows: Int32Array
    keys: Uint64Array | None

    @classmethod
    def of(cls, column: PreparedColumn, values: Any, table_rows: Mapping[str, int]) -> _Ids:
        """Return those of a column that has rows, or keys."""
        stored = values.to_numpy()
        if not column.has_keys:
            return cls(stored, None)
        return cls(table_rows_of(stored[None], (table_rows[column.name],))[0], stored)
