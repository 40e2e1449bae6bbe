"""Files of exported tables, whole or with some of their rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from ..checkpoint.files import write_tensors
from ..types import Float32Array, Int32Array

TableFormat: TypeAlias = Literal["parquet", "safetensors", "none"]
CHUNK_ROWS = 65_536
_WHOLE_BYTES = 1 << 60
# In safetensors, the tensor with the numbers of a table's rows; a whole table has none.
_ROWS_OF = "rows:"


@dataclass(frozen=True, eq=False)
class TableRows:
    """Rows of a table.

    Attributes:
        rows: their numbers, int32 [n], ascending.
        vectors: their values, float32 [n, dim].
    """

    rows: Int32Array
    vectors: Float32Array

    @classmethod
    def all_of(cls, weights: Float32Array) -> TableRows:
        """Return all rows of a table."""
        return cls(np.arange(len(weights), dtype=np.int32), weights)


def write_tables(
    tables: Mapping[str, TableRows], form: TableFormat, folder: Path, *, whole: bool
) -> dict[str, str]:
    """Write rows of tables to `folder`; return the file name of each table.

    Parquet has one file for each table, with the columns `row` (int32) and `vector` (a list of dim floats),
    in the order of rows. Safetensors has one file, with a float32 tensor [n, dim] for each table, by its
    name, and unless the tables are whole an int32 tensor "rows:NAME" with the numbers of its rows. With
    "none" nothing is written. Raises OSError or ResourceError if a file cannot be written.
    """
    if form == "none":
        return {}
    if form == "safetensors":
        tensors: dict[str, Any] = {name: table.vectors for name, table in tables.items()}
        if not whole:
            tensors |= {f"{_ROWS_OF}{name}": table.rows for name, table in tables.items()}
        (entry,) = write_tensors(folder, "tables", tensors, {}, limit_bytes=_WHOLE_BYTES)
        return dict.fromkeys(tables, entry.name)
    files = {}
    for number, (name, table) in enumerate(tables.items()):
        # The name of a column may contain characters that a file name cannot.
        files[name] = f"table-{number:03d}-{re.sub(r'[^A-Za-z0-9_-]+', '_', name)[:60]}.parquet"
        _write_parquet(table, folder / files[name])
    return files


def read_tables(folder: Path, entries: Sequence[Mapping[str, Any]]) -> dict[str, TableRows]:
    """Read the rows of tables by their entries in an export's manifest.

    Raises OSError or ValueError (ArrowInvalid and SafetensorError too) for a file that cannot be read.
    """
    found: dict[str, TableRows] = {}
    tensors: dict[str, Any] = {}
    for entry in entries:
        name, path = entry["name"], folder / entry["file"]
        if path.suffix == ".parquet":
            found[name] = _read_parquet(path, entry["dim"])
            continue
        tensors = tensors or load_file(path)
        rows = tensors.get(f"{_ROWS_OF}{name}")
        found[name] = TableRows.all_of(tensors[name]) if rows is None else TableRows(rows, tensors[name])
    return found


def _write_parquet(table: TableRows, path: Path) -> None:
    vectors = pa.list_(pa.field("item", pa.float32(), nullable=False), table.vectors.shape[1])
    schema = pa.schema(
        [pa.field("row", pa.int32(), nullable=False), pa.field("vector", vectors, nullable=False)]
    )
    # Compression hardly shrinks the floats of a trained table.
    with pq.ParquetWriter(path, schema, use_dictionary=False, compression="none") as writer:
        for start in range(0, len(table.rows), CHUNK_ROWS):
            part = table.vectors[start : start + CHUNK_ROWS]
            rows = pa.array(table.rows[start : start + CHUNK_ROWS])
            values = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), type=vectors)
            writer.write_batch(pa.record_batch([rows, values], schema=schema))


def _read_parquet(path: Path, dim: int) -> TableRows:
    read = pq.read_table(path)
    vectors = read["vector"].combine_chunks().flatten().to_numpy().reshape(-1, dim)
    return TableRows(read["row"].to_numpy(), vectors)
