"""CPU seconds and memory of a step on long lists: jagged beside padded to the longest of the batch.

    python benchmarks/speed/steps/jagged.py --out benchmarks/speed/results/jagged.json

The lengths of a batch are log-uniform, from 1 to 20, 200 or 2,000. A step goes from the nodes' replies to
their gradients: of `sequence` with its loss (two blocks, one head), and of the gather alone, whose loss is
the sum of all numbers. Each form and length is a process of its own. CPU milliseconds are the median of its
steps, on one thread; memory is by how much the peak of the process rises above what it has before the first
step.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.embedding.lookup.request import LookupPlan
from shadowsync.pipeline.embedding.lookup.router import ShardRouter
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.models.layers.sequences import with_lengths
from shadowsync.pipeline.models.own.loss import LossBatch
from shadowsync.pipeline.models.registry import build_model
from shadowsync.pipeline.text.markdown import markdown_table
from shadowsync.pipeline.types import Float32Array

BATCH: Final = 64
DIM: Final = 32
ROWS: Final = 50_000
LONGEST: Final = (20, 200, 2000)
FORMS: Final = ("padded", "jagged")
STEPS: Final = ("sequence", "gather")

Drawn = tuple[list[LookupPlan], list[Float32Array], int]


def job_of(longest: int) -> Job:
    """Return a job of `sequence`."""
    history = {"kind": "multi_hot", "table": "item", "pooling": "none", "max_ids": longest, "keep": "last"}
    columns = {"label": "label", "item": "categorical", "history": history}
    model = {
        "name": "sequence",
        "query": ["history"],
        "item": ["item"],
        "embedding_dim": DIM,
        "table_rows": ROWS,
    }
    return Job.model_validate(
        {"data": {"format": "parquet", "path": ["x"], "columns": columns}, "model": model}
    )


def drawn(router: ShardRouter, longest: int, seed: int) -> Drawn:
    """Draw a batch: its requests, replies, and the number of its vectors."""
    draw = np.random.default_rng(seed)
    lengths = np.exp(draw.random(BATCH) * np.log(longest + 1)).astype(np.int32).clip(1, longest)
    ids = int(lengths.sum())
    requests = router.requests(
        draw.integers(0, ROWS, (1, BATCH), dtype=np.int32),
        draw.integers(0, ROWS, ids, dtype=np.int32),
        lengths[None],
    )
    return requests, [draw.normal(0, 0.05, request.floats).astype(np.float32) for request in requests], ids


def measured(what: str, form: str, longest: int, steps: int) -> dict[str, float]:
    """Return the figures of one case, in this process."""
    torch.set_num_threads(1)
    job = job_of(longest)
    router = ShardRouter(TablePlan.make(job.tables, 1), jagged=form == "jagged")
    module: Any = build_model(job).train()
    labels, items = torch.ones(BATCH), torch.arange(BATCH)

    def step(batch: Drawn) -> None:
        vectors = router.assemble(batch[0], batch[1])
        if what == "gather":
            loss = torch.stack([one.sum() for one in vectors.embeddings]).sum()
        else:
            outputs = module(torch.zeros(BATCH, 0), with_lengths(vectors.embeddings, vectors.lengths))
            loss = module.loss(outputs, LossBatch(labels, None, {}, items))
        loss.backward()  # type: ignore[no-untyped-call]
        vectors.gradients()

    batches = [drawn(router, longest, seed) for seed in range(steps + 1)]
    step(drawn(router, 2, 0))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step(batches[0])
    seconds = [_seconds_of(step, batch) for batch in batches[1:]]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "cpu_milliseconds": 1e3 * statistics.median(seconds),
        "memory_mib": (peak - before) / 1024,
        "vectors": statistics.mean(batch[2] for batch in batches),
    }


def _seconds_of(step: Callable[[Drawn], None], batch: Drawn) -> float:
    began = time.process_time()
    step(batch)
    return time.process_time() - began


def main() -> None:
    """Measure each case in a process, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        what, form, longest = given.case
        print(json.dumps(measured(what, form, int(longest), given.steps)))
        return
    results: dict[str, dict[str, float]] = {}
    for longest in LONGEST:
        for what in STEPS:
            for form in FORMS:
                command = [sys.executable, __file__, "--steps", str(given.steps)]
                case = ["--case", what, form, str(longest)]
                done = subprocess.run([*command, *case], capture_output=True, text=True, check=True)
                results[f"{what}, {form}, {longest}"] = json.loads(done.stdout)
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    rows = [
        (name, *(f"{figures[key]:,.1f}" for key in ("vectors", "cpu_milliseconds", "memory_mib")))
        for name, figures in results.items()
    ]
    print("\n".join(markdown_table(("", "vectors", "CPU ms a step", "peak MiB"), rows)))


if __name__ == "__main__":
    main()
