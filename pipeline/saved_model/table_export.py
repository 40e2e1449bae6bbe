"""Embedding tables in formats that others read: Parquet, one file a table, or safetensors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..checkpoint.files import write_tensors
from .table import Table

TableFormat: TypeAlias = Literal["parquet", "safetensors", "none"]
CHUNK_ROWS = 65_536
_WHOLE_BYTES = 1 << 60


def export_tables(tables: Iterable[Table], form: TableFormat, folder: Path) -> dict[str, str]:
    """Writes the tables into `folder`; gives the name of each one's file, by the table's name.

    Parquet has the columns `row` (int32) and `vector` (a list of dim floats), in the order of rows. The one
    safetensors file has a float32 tensor [rows, dim] of each table's name. Raises OSError, ResourceError.
    """
    if form == "none":
        return {}
    if form == "safetensors":
        tensors = {table.name: table.weights for table in tables}
        (entry,) = write_tensors(folder, "tables", tensors, {}, limit_bytes=_WHOLE_BYTES)
        return dict.fromkeys(tensors, entry.name)
    files = {}
    for number, table in enumerate(tables):
        # Any text may be a column's name, also one that is no file's.
        files[table.name] = f"table-{number:03d}-{re.sub(r'[^A-Za-z0-9_-]+', '_', table.name)[:60]}.parquet"
        _write_parquet(table, folder / files[table.name])
    return files


def _write_parquet(table: Table, path: Path) -> None:
    vectors = pa.list_(pa.field("item", pa.float32(), nullable=False), table.dim)
    schema = pa.schema(
        [pa.field("row", pa.int32(), nullable=False), pa.field("vector", vectors, nullable=False)]
    )
    # Floats of a trained table are noise to a compressor.
    with pq.ParquetWriter(path, schema, use_dictionary=False, compression="none") as writer:
        for start in range(0, table.rows, CHUNK_ROWS):
            part = table.weights[start : start + CHUNK_ROWS]
            rows = pa.array(np.arange(start, start + len(part), dtype=np.int32))
            values = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), type=vectors)
            writer.write_batch(pa.record_batch([rows, values], schema=schema))
