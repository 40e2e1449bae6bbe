"""A job with a growing table for each way to use a list of ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from shadowsync.pipeline.saved_model.model import SavedModel

ITEMS, ROWS, EVAL_ROWS = 40, 4000, 1000
LIST = {"kind": "multi_hot", "source": "history", "max_ids": 5}
COLUMNS: dict[str, Any] = {
    "clicked": "label",
    "item": "categorical",
    "history": {**LIST, "pooling": "none"},
    "sums": LIST,
    "means": {**LIST, "pooling": "mean"},
    "weighted": {**LIST, "weights": "scores", "pooling": "mean"},
}
TABLES = [name for name in COLUMNS if name != "clicked"]


def write_log(folder: Path) -> Path:
    """Rows whose label says whether most of the weight of a list is on low items."""
    rng = np.random.default_rng(1)
    for name, count in (("train", ROWS), ("eval", EVAL_ROWS)):
        history = [rng.choice(ITEMS, rng.integers(0, 6), replace=False) for _ in range(count)]
        scores = [rng.integers(1, 9, len(own)) for own in history]
        low = [weights[own < ITEMS // 2].sum() for own, weights in zip(history, scores, strict=True)]
        clicked = [2 * part > weights.sum() for part, weights in zip(low, scores, strict=True)]
        columns = {
            "clicked": np.array(clicked, np.int8),
            "item": rng.integers(0, ITEMS, count),
            "history": pa.array(history, pa.list_(pa.int64())),
            "scores": pa.array(scores, pa.list_(pa.float32())),
        }
        pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=1000)
    return folder


def values_of(folder: Path) -> list[np.ndarray]:
    """The parameters of a run's dense part, and every item's vector in each column's table."""
    model = SavedModel.open(folder)
    dense = [parameter.numpy() for parameter in model.dense.parameters()]
    return dense + [model.tables[name].lookup_ids(range(ITEMS)).numpy() for name in TABLES]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    """Whether both have the same values, to the bit."""
    return all(np.array_equal(left, right) for left, right in zip(one, other, strict=True))


def job_of(log: Path, table: Mapping[str, Any], **changes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings of a DIN job; `table` are those of each table, none for hashed ones."""
    base: dict[str, dict[str, Any]] = {
        "data": {
            "format": "parquet",
            "path": str(log / "train.parquet"),
            "eval_path": str(log / "eval.parquet"),
            "columns": COLUMNS,
            "epochs": 2,
        },
        "model": {"name": "din", "attention": {"history": "item"}, "table_rows": 20_000, "bottom": None},
        "trainer": {"count": 1, "batch": 64, "optimizer": "adam", "lr": 0.01},
        "embedding": {"nodes": 1, "lr": 0.1, "optimizer": "adagrad"},
        "sync": {"algorithm": "none", "nodes": 0},
        "tables": {name: dict(table) for name in TABLES} if table else {},
    }
    return {name: base.get(name, {}) | dict(changes.get(name, {})) for name in base | changes}
