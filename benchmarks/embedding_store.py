"""What the embedding tables cost a batch: on their node, and on a trainer's worker, each on one thread.

    python benchmarks/embedding_store.py [--quick] [--out FILE.json]

Ids are log-uniform, one an example and table, 26 tables of 16 floats. Each figure is the median over
repeats of the mean over 20 different batches, in CPU microseconds of the thread, which other load on the
machine disturbs least, and in microseconds of the wall. "read + write" is a bound on the step of the rows: a
gather of as many rows and a scatter of them back, with nothing summed or computed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shadowsync.pipeline.data.batch import Int32Array
from shadowsync.pipeline.embedding.plan import TablePlan
from shadowsync.pipeline.embedding.routing import ShardRouter
from shadowsync.pipeline.embedding.store import ShardStore
from shadowsync.pipeline.report.hardware import describe_hardware, versions

TABLES, DIM, BATCHES = 26, 16, 20


def main() -> None:
    """Measures, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="tenth of the rows, few repeats: checks, not figures"
    )
    parser.add_argument("--out", type=Path, default=Path("embedding_store.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = 10_000 if options.quick else 100_000
    repeats = 3 if options.quick else 15
    results = [fill_figures(rows)]
    for batch in (512,) if options.quick else (512, 2048):
        for optimizer in ("sgd", "rowwise_adagrad"):
            results.append(node_figures(rows, batch, optimizer, repeats))
        # One table of as many rows as the others together is what makes the plan split.
        even = TablePlan.make([rows] * TABLES, DIM, 2)
        split = TablePlan.make([rows * TABLES] + [rows] * (TABLES - 1), DIM, 2)
        results.append(worker_figures("whole tables", even, batch, repeats))
        results.append(worker_figures("one split table", split, batch, repeats))
    print_table(results)
    report = {
        "date": datetime.now(UTC).isoformat(),
        "quick": options.quick,
        "hardware": describe_hardware().model_dump(),
        "versions": versions(),
        "load_average": os.getloadavg(),
        "results": results,
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\nwritten to {options.out}")


def fill_figures(rows: int) -> dict[str, Any]:
    """Rows a second that a new store initializes, its page faults included."""
    plan = TablePlan.make([rows] * TABLES, DIM, 1)
    start = time.perf_counter()
    ShardStore(plan, 0, seed=1, optimizer="rowwise_adagrad", lr=0.02, memory_fraction=0.8)
    seconds = time.perf_counter() - start
    return {"what": "new store", "rows": rows * TABLES, "million rows/s": rows * TABLES / seconds / 1e6}


def node_figures(rows: int, batch: int, optimizer: str, repeats: int) -> dict[str, Any]:
    """One node that has all tables."""
    plan = TablePlan.make([rows] * TABLES, DIM, 1)
    store = ShardStore(plan, 0, seed=1, optimizer=optimizer, lr=0.02, memory_fraction=0.8)
    asked = [ShardRouter(plan).requests(ids)[0].rows for ids in drawn_ids(plan, batch)]
    distinct = [np.unique(ids) for ids in asked]
    out = np.empty((len(asked[0]), DIM), np.float32)
    gradients = np.random.default_rng(2).standard_normal((len(asked[0]), DIM), dtype=np.float32)
    weights = store.tensors()["weights"]

    def read_and_write(index: int) -> None:
        part = out[: len(distinct[index])]
        np.take(weights, distinct[index], axis=0, out=part, mode="clip")
        weights[distinct[index]] = part

    return {
        "what": f"node, {optimizer}",
        "batch": batch,
        "lookups": len(asked[0]),
        "distinct": statistics.mean(map(len, distinct)),
        "lookup": microseconds(lambda index: store.lookup(asked[index], out), repeats),
        "apply": microseconds(lambda index: store.apply(asked[index], gradients), repeats),
        "read + write": microseconds(read_and_write, repeats),
    }


def worker_figures(what: str, plan: TablePlan, batch: int, repeats: int) -> dict[str, Any]:
    """One worker of a trainer, over two nodes; the backward pass starts at the `cat` of all embeddings."""
    router = ShardRouter(plan)
    ids = drawn_ids(plan, batch)
    requests = [router.requests(one) for one in ids]
    answers = [[np.ones((len(r.rows), DIM), np.float32) for r in asked] for asked in requests]
    gradient = torch.ones(batch, TABLES * DIM)

    def train(index: int) -> None:
        vectors = router.assemble(requests[index], answers[index])
        torch.cat(vectors.embeddings, 1).backward(gradient)  # type: ignore[no-untyped-call]
        vectors.gradients()

    def bound(_: int) -> None:
        torch.cat(leaves, 1).backward(gradient)  # type: ignore[no-untyped-call]

    leaves = [torch.ones(batch, DIM, requires_grad=True) for _ in range(TABLES)]
    return {
        "what": f"worker, {what}",
        "batch": batch,
        "requests": microseconds(lambda index: router.requests(ids[index]), repeats),
        "assemble": microseconds(lambda index: router.assemble(requests[index], answers[index]), repeats),
        "assemble, cat, backward": microseconds(train, repeats),
        "26 leaves, cat, backward": microseconds(bound, repeats),
    }


def drawn_ids(plan: TablePlan, batch: int) -> list[Int32Array]:
    """Rows int32 [T, batch] of each of the batches, log-uniform over each table's rows."""
    draw = np.random.default_rng(1)
    most = np.array(plan.table_rows)[:, None]
    return [
        np.minimum(most ** draw.random((len(most), batch)), most - 1).astype(np.int32) for _ in range(BATCHES)
    ]


def microseconds(call: Callable[[int], object], repeats: int) -> dict[str, float]:
    """Median over the repeats of the mean over the batches, after one round to warm up."""
    cpu, wall = [], []
    for _ in range(repeats + 1):
        cpu_start, wall_start = time.thread_time(), time.perf_counter()
        for index in range(BATCHES):
            call(index)
        cpu.append((time.thread_time() - cpu_start) / BATCHES * 1e6)
        wall.append((time.perf_counter() - wall_start) / BATCHES * 1e6)
    return {"cpu_us": statistics.median(cpu[1:]), "wall_us": statistics.median(wall[1:])}


def print_table(results: list[dict[str, Any]]) -> None:
    """A line for each thing measured."""
    print(f"{'':26}{'batch':>6}  {'':28}{'CPU us':>9}{'wall us':>9}")
    for result in results:
        for name, value in result.items():
            head = f"{result['what']:26}{result.get('batch', ''):>6}  {name:28}"
            if isinstance(value, dict):
                print(f"{head}{value['cpu_us']:9,.0f}{value['wall_us']:9,.0f}")
            elif name not in ("what", "batch"):
                print(f"{head}{value:9,.1f}")


if __name__ == "__main__":
    main()
