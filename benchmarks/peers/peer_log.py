"""The data of the comparison with other systems.

There are 13 dense columns, and 26 tables with log-uniform ids. Labels are random, so the data is for
throughput only. It is written once as Parquet, with integer ids.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TABLES, ROWS, DENSE = 26, 100_000, 13


def write_peer_log(path: Path, examples: int, seed: int = 0) -> Path:
    """Write a Parquet file of `examples` rows.

    Row groups have 65,536 rows. A file that exists is left alone.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    partial = path.with_suffix(".partial")
    writer: pq.ParquetWriter | None = None
    for start in range(0, examples, 65_536):
        rows = min(65_536, examples - start)
        columns: dict[str, pa.Array] = {"label": pa.array((random.random(rows) < 0.25).astype(np.int32))}
        for at in range(DENSE):
            columns[f"I{at + 1}"] = pa.array(random.standard_normal(rows).astype(np.float32))
        for at in range(TABLES):
            ids = (ROWS ** random.random(rows) - 1).astype(np.int32).clip(0, ROWS - 1)
            columns[f"C{at + 1}"] = pa.array(ids)
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(partial, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    partial.rename(path)
    return path
