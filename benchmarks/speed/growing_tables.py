"""A growing table beside a hashed one: rows a second, bytes a row.

    python benchmarks/speed/growing_tables.py --out benchmarks/speed/results/growing_tables.json

Both tables are in one store each, of one thread, and get the same batches in turns: a lookup of the ids, then
a push of their gradients. The ids of the first part all have a row; in the second part most are new, ten
times as many as the table has rows. Ratios are the smallest, the median and the largest of the rounds.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from shadowsync.pipeline.config.tables import Growth, TableColumn, TableSettings
from shadowsync.pipeline.data.hashing import mix, table_rows_of
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage.growing_bank import GrowingBank
from shadowsync.pipeline.embedding.storage.store import ShardStore
from shadowsync.pipeline.report.write import describe_hardware, versions
from shadowsync.pipeline.types import Int32Array, Uint64Array

NO_ROWS: Int32Array = np.zeros(0, np.int32)
DIM = 16


def store_of(rows: int, growth: Growth | None) -> ShardStore:
    """A store of one table."""
    table = TableSettings(
        "id", rows, DIM, "rowwise_adagrad", 0.02, 0.05, "float32", growth, (TableColumn("id"),)
    )
    return ShardStore(TablePlan.make([table], 1), 0, seed=1, memory_fraction=0.9)


def timed(store: ShardStore, rows: Int32Array, keys: Uint64Array) -> tuple[float, float]:
    """Look up and push once; return the seconds of each."""
    out = np.empty((len(rows) + len(keys), DIM), np.float32)
    gradients = np.full(out.shape, 0.01, np.float32)
    began = time.perf_counter()
    store.lookup(rows, out, keys=keys)
    between = time.perf_counter()
    store.apply(rows, gradients, keys=keys)
    return between - began, time.perf_counter() - between


def batches(ids: int, batch: int, count: int, seed: int) -> list[Uint64Array]:
    """Draw batches of keys of ids below `ids`, in the order of examples."""
    rng = np.random.default_rng(seed)
    return [mix(rng.integers(0, ids, batch).astype(np.uint64)) for _ in range(count)]


def known_ids(rows: int, batch: int, rounds: int) -> dict[str, Any]:
    """Compare where every id has a row."""
    hashed, growing = store_of(rows, None), store_of(rows, Growth())
    every = mix(np.arange(rows, dtype=np.uint64))
    for part in np.array_split(every, 50):
        timed(growing, NO_ROWS, part)
    ratios: dict[str, list[float]] = {"lookups": [], "pushes": [], "both": []}
    rates: dict[str, list[float]] = {"hashed": [], "growing": []}
    for number in range(rounds):
        sums = {"hashed": np.zeros(2), "growing": np.zeros(2)}
        for keys in batches(rows, batch, 20, number):
            sums["growing"] += timed(growing, NO_ROWS, keys)
            sums["hashed"] += timed(hashed, table_rows_of(keys[None], (rows,))[0], keys[:0])
        for at, what in enumerate(("lookups", "pushes")):
            ratios[what].append(float(sums["hashed"][at] / sums["growing"][at]))
        ratios["both"].append(float(sums["hashed"].sum() / sums["growing"].sum()))
        for name, seconds in sums.items():
            rates[name].append(20 * batch / float(seconds.sum()))
    bank = next(bank for bank, _ in growing._groups if isinstance(bank, GrowingBank))
    row_bytes = 4 * DIM + 4
    return {
        "rows": rows,
        "ids a batch": batch,
        "rounds": rounds,
        "rows a second": {name: round(median(values)) for name, values in rates.items()},
        "speed of growing over hashed": {
            what: [round(f(values), 3) for f in (min, median, max)] for what, values in ratios.items()
        },
        "bytes a row": {"hashed": row_bytes, "growing": round(row_bytes + bank.directory.bytes / rows, 1)},
    }


def new_ids(rows: int, ids: int, batch: int, growth: Growth) -> dict[str, Any]:
    """Push each of `ids` ids once or more into so many rows."""
    store = store_of(rows, growth)
    began, longest = time.perf_counter(), 0.0
    for start in range(0, ids, batch):
        keys = mix(np.arange(start, min(start + batch, ids), dtype=np.uint64))
        longest = max(longest, sum(timed(store, NO_ROWS, keys)))
    seconds = time.perf_counter() - began
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
    result = {
        "known ids": known_ids(options.rows, options.batch, options.rounds),
        "ten times as many ids as rows": new_ids(options.rows, 10 * options.rows, options.batch, Growth()),
        "the same, without eviction": new_ids(
            options.rows, 10 * options.rows, options.batch, Growth(evict="never")
        ),
        "hardware": describe_hardware().model_dump(),
        "versions": versions(),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
