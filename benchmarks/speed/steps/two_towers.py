"""What a step of two towers costs, beside the same step in plain torch.

    OMP_NUM_THREADS=1 python benchmarks/speed/steps/two_towers.py --out two_towers.json

One thread, no sockets, float32, SGD: a worker's step from its vectors to their gradients, with and without
the correction for frequency, and a loop with `torch.nn.Embedding`, whose tables get sparse gradients. The
three take turns. Figures are microseconds of CPU time, the median over the steps, and examples a second of
it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.runtime.process import tune_malloc
from shadowsync.nodes.worker.step import Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.models.built_in.two_tower import TwoTower
from shadowsync.pipeline.models.registry import build_model
from shadowsync.pipeline.text.markdown import markdown_table
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.messages import Delivery
from torch import nn
from torch.nn.functional import cross_entropy

ROWS, DIM, COLUMNS = 100_000, 32, 4
BATCHES: Final = (256, 1024, 4096)


def job_of(batch: int, frequency_rate: float) -> Job:
    """Return a job with two columns in each tower."""
    columns = {"y": "label"} | {f"x{number}": "categorical" for number in range(COLUMNS)}
    return Job.model_validate(
        {
            "data": {"format": "parquet", "path": ["none.parquet"], "columns": columns},
            "model": {
                "name": "two_tower",
                "query": ["x0", "x1"],
                "item": ["x2", "x3"],
                "table_rows": ROWS,
                "embedding_dim": DIM,
                "top": [128],
                "options": {"frequency_rate": frequency_rate},
            },
            "embedding": {"optimizer": "sgd"},
            "trainer": {
                "batch": batch,
                "precision": "float32",
                "optimizer": "sgd",
                "lr": 0.01,
                "exact_rows": False,
            },
        }
    )


def made_deliveries(count: int, batch: int) -> list[Delivery]:
    """Return batches of positives with log-uniform ids."""
    random = np.random.default_rng(0)
    return [
        Delivery(
            sequence=number + 1,
            pass_number=0,
            id=BatchId(0, 0, number, 0),
            labels=np.ones(batch, np.float32),
            dense=np.zeros((batch, 0), np.float32),
            rows=(ROWS ** random.random((COLUMNS, batch)) - 1).astype(np.int32),
        )
        for number in range(count)
    ]


def worker_step(job: Job) -> Callable[[Delivery], None]:
    """Return a worker's step, with vectors that do not change."""
    context = TrainerContext.build(job, TablePlan.make(job.tables, job.embedding.nodes))
    stepper = Stepper(context)
    values = np.random.default_rng(1).standard_normal(2 * job.trainer.batch * COLUMNS * DIM, np.float32)

    def step(delivery: Delivery) -> None:
        requests = context.router.requests(delivery.rows)
        stepper.train(delivery, requests, [values[: request.floats] for request in requests])

    return step


def plain_step(job: Job) -> Callable[[Delivery], None]:
    """Return a step of a loop with the same module, without a correction."""
    model = build_model(job)
    assert isinstance(model, TwoTower)
    tables = nn.ModuleList(nn.Embedding(ROWS, DIM, sparse=True) for _ in range(COLUMNS))
    optimizer = torch.optim.SGD([*model.parameters(), *tables.parameters()], lr=0.01)

    def step(delivery: Delivery) -> None:
        ids = torch.from_numpy(delivery.rows).long()
        vectors = [table(rows) for table, rows in zip(tables, ids, strict=True)]
        queries, items = model(torch.from_numpy(delivery.dense), vectors)
        scores = queries @ items.T / model.temperature
        same = (ids[2][:, None] == ids[2]).fill_diagonal_(0)
        scores = scores.masked_fill(same, -torch.inf)
        optimizer.zero_grad()
        cross_entropy(scores, torch.arange(len(scores))).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def measured(batch: int, steps: int) -> dict[str, float]:
    """Return the median CPU microseconds of each kind of step."""
    deliveries = made_deliveries(20, batch)
    kinds = {
        "worker": worker_step(job_of(batch, 0.01)),
        "worker, not corrected": worker_step(job_of(batch, 0)),
        "plain torch": plain_step(job_of(batch, 0)),
    }
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(steps):
        for name, step in kinds.items():
            began = time.thread_time()
            step(deliveries[number % len(deliveries)])
            taken[name].append(time.thread_time() - began)
    # The first ones reserve memory.
    return {name: float(np.median(seconds[5:])) * 1e6 for name, seconds in taken.items()}


def main() -> None:
    """Measure all batch sizes, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    tune_malloc()
    torch.set_num_threads(1)
    found: dict[str, Any] = {str(batch): measured(batch, given.steps) for batch in BATCHES}
    given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    rows = [
        (batch, *(f"{micros:,.0f} µs, {int(batch) / micros * 1e6:,.0f}/s" for micros in kinds.values()))
        for batch, kinds in found.items()
    ]
    print("\n".join(markdown_table(("batch", *found[str(BATCHES[0])]), rows)))


if __name__ == "__main__":
    main()
