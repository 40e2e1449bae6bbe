"""What the embedding tables cost a batch on a worker.

It is a trainer's worker, on one thread.

    python benchmarks/embedding_worker.py [--quick] [--out FILE.json]

Ids are log-uniform, one an example and table, 26 tables of 16 floats. Each figure is the median over
repeats of the mean over 20 different batches, in CPU microseconds of the thread, which other load on the
machine disturbs least, and in microseconds of the wall. What they cost a node: `embedding_node.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shadowsync.pipeline.config.tables import TableSettings
from shadowsync.pipeline.embedding.lookup.router import ShardRouter
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.report.write import describe_hardware, versions
from shadowsync.pipeline.types import Int32Array

TABLES, DIM, BATCHES = 26, 16, 20


def main() -> None:
    """Measure, print the table and write the JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="tenth of the rows, few repeats: checks, not figures"
    )
    parser.add_argument("--out", type=Path, default=Path("embedding_worker.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = 10_000 if options.quick else 100_000
    repeats = 3 if options.quick else 15
    results: list[dict[str, Any]] = []
    for batch in (512,) if options.quick else (512, 2048):
        # One table of as many rows as the others together is what makes the plan split.
        even = TablePlan.make(tables([rows] * TABLES), 2)
        split = TablePlan.make(tables([rows * TABLES] + [rows] * (TABLES - 1)), 2)
        results.append(worker_figures("whole tables", even, batch, repeats))
        results.append(worker_figures("one split table", split, batch, repeats))
        banks = TablePlan.make(tables([rows] * TABLES, rates=(0.02, 0.05)), 2)
        results.append(worker_figures("two banks", banks, batch, repeats))
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


def worker_figures(what: str, plan: TablePlan, batch: int, repeats: int) -> dict[str, Any]:
    """Figures of one worker of a trainer, over two nodes.

    The backward pass starts at the `cat` of all embeddings.
    """
    router = ShardRouter(plan)
    ids = drawn_ids(plan, batch)
    requests = [router.requests(one) for one in ids]
    answers = [[np.ones(r.floats, np.float32) for r in asked] for asked in requests]
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


def tables(
    rows: Sequence[int], optimizer: str = "rowwise_adagrad", rates: Sequence[float] = (0.02,)
) -> list[TableSettings]:
    """Tables of DIM floats whose rates take turns."""
    return [
        TableSettings(f"C{n}", count, DIM, "", optimizer, rates[n % len(rates)], 0.05)
        for n, count in enumerate(rows)
    ]


def drawn_ids(plan: TablePlan, batch: int) -> list[Int32Array]:
    """Rows int32 [T, batch] of each of the batches.

    They are log-uniform over each table's rows.
    """
    draw = np.random.default_rng(1)
    most = np.array(plan.table_rows)[:, None]
    return [
        np.minimum(most ** draw.random((len(most), batch)), most - 1).astype(np.int32) for _ in range(BATCHES)
    ]


def microseconds(call: Callable[[int], object], repeats: int) -> dict[str, float]:
    """Median over the repeats of the mean over the batches.

    One round before warms up.
    """
    cpu, wall = [], []
    for _ in range(repeats + 1):
        cpu_start, wall_start = time.thread_time(), time.perf_counter()
        for index in range(BATCHES):
            call(index)
        cpu.append((time.thread_time() - cpu_start) / BATCHES * 1e6)
        wall.append((time.perf_counter() - wall_start) / BATCHES * 1e6)
    return {"cpu_us": statistics.median(cpu[1:]), "wall_us": statistics.median(wall[1:])}


def print_table(results: list[dict[str, Any]]) -> None:
    """Print a line for each thing measured."""
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
