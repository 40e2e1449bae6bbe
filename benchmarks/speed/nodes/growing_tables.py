"""Growing tables, with either index, beside a hashed one: rows a second, bytes a row.

    python benchmarks/speed/nodes/growing_tables.py --out benchmarks/speed/results/growing_tables.json

Each table is in a store of its own, of one thread, and all get batches in turns: a lookup of the ids, then a
push of their gradients. The ids of the first part all have a row; in the second part most are new, ten times
as many as the table has rows. Ratios are the smallest, the median and the largest of the rounds. "numpy" is
the index without the extra `fast`, "compiled" the one with it. Seconds are of CPU: the same as others where
nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from shadowsync.nodes.runtime.process import tune_malloc
from shadowsync.pipeline.config.tables import Growth, TableColumn, TableSettings
from shadowsync.pipeline.data.hashing import mix, table_rows_of
from shadowsync.pipeline.embedding.growing import row_directory
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage.growing_bank import GrowingBank
from shadowsync.pipeline.embedding.storage.store import ShardStore
from shadowsync.pipeline.report.run_folders.write import describe_hardware, versions
from shadowsync.pipeline.types import Int32Array, Uint64Array

NO_ROWS: Int32Array = np.zeros(0, np.int32)
DIM = 16
INDEXES = ("numpy", "compiled")


def store_of(rows: int, growth: Growth | None, index: str = "") -> ShardStore:
    """A store of one table; a growing one has this index."""
    table = TableSettings(
        "id", rows, DIM, "rowwise_adagrad", 0.02, 0.05, "float32", growth, (TableColumn("id"),)
    )
    compiled_from = 0 if index == "compiled" else rows + 1
    with patch.object(row_directory, "COMPILED_FROM_ROWS", compiled_from):
        return ShardStore(TablePlan.make([table], 1), 0, seed=1, memory_fraction=0.9)


def timed(store: ShardStore, rows: Int32Array, keys: Uint64Array) -> tuple[float, float]:
    """Look up and push once; return the seconds of CPU of each."""
    out = np.empty((len(rows) + len(keys), DIM), np.float32)
    gradients = np.full(out.shape, 0.01, np.float32)
    began = time.process_time()
    store.lookup(rows, out, keys=keys)
    between = time.process_time()
    store.apply(rows, gradients, keys=keys)
    return between - began, time.process_time() - between


def batches(ids: int, batch: int, count: int, seed: int) -> list[Uint64Array]:
    """Draw batches of keys of ids below `ids`, in the order of examples."""
    rng = np.random.default_rng(seed)
    return [mix(rng.integers(0, ids, batch).astype(np.uint64)) for _ in range(count)]


def known_ids(rows: int, batch: int, rounds: int) -> dict[str, Any]:
    """Compare where every id has a row."""
    stores = {"hashed": store_of(rows, None)}
    stores |= {index: store_of(rows, Growth(), index) for index in INDEXES}
    every = mix(np.arange(rows, dtype=np.uint64))
    for part in np.array_split(every, 50):
        for index in INDEXES:
            timed(stores[index], NO_ROWS, part)
    ratios: dict[str, dict[str, list[float]]] = {
        index: {"lookups": [], "pushes": [], "both": []} for index in INDEXES
    }
    rates: dict[str, list[float]] = {name: [] for name in stores}
    for number in range(rounds):
        sums = {name: np.zeros(2) for name in stores}
        # Of each table other batches: one that read the same keys before would have them in the cache.
        drawn = {name: batches(rows, batch, 20, 10 * number + at) for at, name in enumerate(stores)}
        for turn in range(20):
            for name, store in stores.items():
                keys, hashed = drawn[name][turn], name == "hashed"
                found = table_rows_of(keys[None], (rows,))[0] if hashed else NO_ROWS
                sums[name] += timed(store, found, keys[:0] if hashed else keys)
        for name, seconds in sums.items():
            rates[name].append(20 * batch / float(seconds.sum()))
        for index in INDEXES:
            times = sums["hashed"] / sums[index]
            ratios[index]["lookups"].append(float(times[0]))
            ratios[index]["pushes"].append(float(times[1]))
            ratios[index]["both"].append(float(sums["hashed"].sum() / sums[index].sum()))
    row_bytes = 4 * DIM + 4
    return {
        "rows": rows,
        "ids a batch": batch,
        "rounds": rounds,
        "rows a second": {name: round(median(values)) for name, values in rates.items()},
        "speed of growing over hashed": {
            index: {what: [round(f(values), 3) for f in (min, median, max)] for what, values in of.items()}
            for index, of in ratios.items()
        },
        "bytes a row": {"hashed": row_bytes}
        | {index: round(row_bytes + directory_bytes(stores[index]) / rows, 1) for index in INDEXES},
    }


def directory_bytes(store: ShardStore) -> int:
    """Bytes of ids, times of use and index."""
    return next(bank for bank, _ in store._groups if isinstance(bank, GrowingBank)).directory.bytes


def new_ids(rows: int, ids: int, batch: int, growth: Growth, index: str) -> dict[str, Any]:
    """Push each of `ids` ids once or more into so many rows."""
    store = store_of(rows, growth, index)
    began, longest = time.process_time(), 0.0
    for start in range(0, ids, batch):
        keys = mix(np.arange(start, min(start + batch, ids), dtype=np.uint64))
        longest = max(longest, sum(timed(store, NO_ROWS, keys)))
    seconds = time.process_time() - began
    counts = {name.split("/")[1]: count for name, count in store.growth_counts().items()}
    return {
        "rows": rows,
        "ids": ids,
        "ids a batch": batch,
        "seconds": round(seconds, 2),
        "ids a second": round(ids / seconds),
        "longest batch, seconds": round(longest, 3),
        **counts,
    }


def main() -> None:
    """Run both parts, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    # As the thread that owns a node's rows does.
    tune_malloc()
    of_new = options.rows, 10 * options.rows, options.batch
    result = {
        "known ids": known_ids(options.rows, options.batch, options.rounds),
        "ten times as many ids as rows": {index: new_ids(*of_new, Growth(), index) for index in INDEXES},
        "the same, without eviction": {
            index: new_ids(*of_new, Growth(evict="never"), index) for index in INDEXES
        },
        "hardware": describe_hardware().model_dump(),
        "versions": versions(),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
