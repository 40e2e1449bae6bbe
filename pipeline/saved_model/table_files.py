"""Files of exported tables, whole or with some of their rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from ..checkpoint.files import write_tensors
from ..types import Float32Array, Int32Array, Uint64Array

TableFormat: TypeAlias = Literal["parquet", "safetensors", "none"]
CHUNK_ROWS = 65_536
_WHOLE_BYTES = 1 << 60
# In safetensors, the tensor with the numbers of a table's rows; a whole table has none. A growing table has
# its keys, and in an increment those that have no row any more.
_ROWS_OF, _KEYS_OF, _GONE_OF = "rows:", "keys:", "gone:"
_NO_KEYS: Uint64Array = np.zeros(0, np.uint64)


@dataclass(frozen=True, eq=False)
class TableRows:
    """Rows of a table, all or those that changed.

    Attributes:
        rows: int32 [n], their numbers; or uint64 [n], the keys of a growing table; ascending.
        vectors: their values, float32 [n, dim].
        gone: uint64 [m], keys of a growing table that lost their row.
    """

    rows: Int32Array | Uint64Array
    vectors: Float32Array
    gone: Uint64Array = field(default_factory=_NO_KEYS.copy)

    @classmethod
    def all_of(cls, weights: Float32Array) -> TableRows:
        """Return all rows of a table that does not grow."""
        return cls(np.arange(len(weights), dtype=np.int32), weights)

    @property
    def is_growing(self) -> bool:
        """Whether the rows are those of a growing table."""
        return self.rows.dtype == np.uint64

    def changes_since(self, before: TableRows) -> TableRows:
        """Return the rows that differ from `before` in any bit; both are whole."""
        if not self.is_growing:
            same, before_at, gone = np.arange(len(self.rows)), np.arange(len(self.rows)), _NO_KEYS
        else:
            _, same, before_at = np.intersect1d(
                self.rows, before.rows, assume_unique=True, return_indices=True
            )
            gone = np.setdiff1d(before.rows, self.rows, assume_unique=True).astype(np.uint64)
        differs = np.ones(len(self.rows), np.bool_)
        differs[same] = (self.vectors[same].view(np.uint32) != before.vectors[before_at].view(np.uint32)).any(
            axis=1
        )
        changed = np.flatnonzero(differs)
        return TableRows(self.rows[changed], self.vectors[changed], gone)

    def with_changes(self, changes: TableRows) -> TableRows:
        """Return these rows, which are whole, after changes; may change their memory."""
        if not self.is_growing:
            # A copy, if it is memory of the file's reader.
            vectors = np.require(self.vectors, requirements="W")
            vectors[changes.rows] = changes.vectors
            return TableRows(self.rows, vectors)
        kept = ~np.isin(self.rows, np.concatenate([changes.rows, changes.gone]))
        keys = np.concatenate([self.rows[kept], changes.rows])
        vectors = np.concatenate([self.vectors[kept], changes.vectors])
        order = np.argsort(keys)
        return TableRows(keys[order], vectors[order])


def table_of(entry: Mapping[str, Any]) -> str:
    """Return the name of the table that a column has, by its entry in a manifest.

    In exports of before columns shared tables it is the column's.
    """
    return str(entry.get("table", entry["name"]))


def write_tables(
    tables: Mapping[str, TableRows], form: TableFormat, folder: Path, *, whole: bool
) -> dict[str, str]:
    """Write rows of tables to `folder`; return the file name of each table.

    Parquet has one file for each table, with the columns `row` (int32) and `vector` (a list of dim floats),
    in the order of rows. Safetensors has one file, with a float32 tensor [n, dim] for each table, by its
    name, and unless the tables are whole an int32 tensor "rows:NAME" with the numbers of its rows. A growing
    table has keys: in Parquet a column `key` (uint64) in place of `row`, with no vector for a key that lost
    its row; in safetensors the bits of its keys, int64 "keys:NAME", and of those that lost their row,
    "gone:NAME". With "none" nothing is written. Raises OSError or ResourceError if a file cannot be written.
    """
    if form == "none":
        return {}
    if form == "safetensors":
        tensors: dict[str, Any] = {name: table.vectors for name, table in tables.items()}
        for name, table in tables.items():
            if table.is_growing:
                tensors[f"{_KEYS_OF}{name}"] = table.rows.view(np.int64)
                tensors |= {} if whole else {f"{_GONE_OF}{name}": table.gone.view(np.int64)}
            elif not whole:
                tensors[f"{_ROWS_OF}{name}"] = table.rows
        (entry,) = write_tensors(folder, "tables", tensors, {}, limit_bytes=_WHOLE_BYTES)
        return dict.fromkeys(tables, entry.name)
    files = {}
    for number, (name, table) in enumerate(tables.items()):
        # The name of a column may contain characters that a file name cannot.
        files[name] = f"table-{number:03d}-{re.sub(r'[^A-Za-z0-9_-]+', '_', name)[:60]}.parquet"
        _write_parquet(table, folder / files[name])
    return files


def read_tables(folder: Path, entries: Sequence[Mapping[str, Any]]) -> dict[str, TableRows]:
    """Read the rows of tables, each once, by the entries of their columns in an export's manifest.

    Raises OSError or ValueError (ArrowInvalid and SafetensorError too) for a file that cannot be read.
    """
    tables: dict[str, TableRows] = {}
    tensors: dict[str, Any] = {}
    for entry in entries:
        name, path = table_of(entry), folder / entry["file"]
        if name in tables:
            continue
        if path.suffix == ".parquet":
            tables[name] = _read_parquet(path, entry["dim"])
            continue
        tensors = tensors or load_file(path)
        rows, keys = tensors.get(f"{_ROWS_OF}{name}"), tensors.get(f"{_KEYS_OF}{name}")
        if keys is not None:
            gone = tensors.get(f"{_GONE_OF}{name}", _NO_KEYS)
            tables[name] = TableRows(keys.view(np.uint64), tensors[name], gone.view(np.uint64))
        else:
            tables[name] = TableRows.all_of(tensors[name]) if rows is None else TableRows(rows, tensors[name])
    return tables


def _write_parquet(table: TableRows, path: Path) -> None:
    vectors = pa.list_(pa.field("item", pa.float32(), nullable=False), table.vectors.shape[1])
    number = pa.field("key", pa.uint64()) if table.is_growing else pa.field("row", pa.int32())
    schema = pa.schema([number.with_nullable(False), pa.field("vector", vectors, nullable=table.is_growing)])
    # Compression hardly shrinks the floats of a trained table.
    with pq.ParquetWriter(path, schema, use_dictionary=False, compression="none") as writer:
        for start in range(0, len(table.rows), CHUNK_ROWS):
            part = table.vectors[start : start + CHUNK_ROWS]
            rows = pa.array(table.rows[start : start + CHUNK_ROWS])
            values = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), type=vectors)
            writer.write_batch(pa.record_batch([rows, values], schema=schema))
        if len(table.gone):
            nothing = pa.nulls(len(table.gone), vectors)
            writer.write_batch(pa.record_batch([pa.array(table.gone), nothing], schema=schema))


def _read_parquet(path: Path, dim: int) -> TableRows:
    read = pq.read_table(path)
    if "key" in read.column_names:
        keys, lists = read["key"].to_numpy(), read["vector"].combine_chunks()
        known = lists.is_valid().to_numpy(zero_copy_only=False)
        vectors = lists.drop_null().flatten().to_numpy().reshape(-1, dim)
        return TableRows(keys[known], vectors, keys[~known])
    vectors = read["vector"].combine_chunks().flatten().to_numpy().reshape(-1, dim)
    return TableRows(read["row"].to_numpy(), vectors)
