"""What a GPU trainer's step costs the host: seconds of its CPU, with a device that does nothing.

    python benchmarks/speed/steps/host_step.py --batch 2048 --out benchmarks/speed/results/host_step.json

A worker's stage, launch and finish of the demo's DLRM with 26 tables on two nodes, whole or split. Copies,
events and kernels of the device cost nothing here; what is left is the host's own work, of which a part is to
copy the vectors and gradients through pinned memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shadowsync.benchmarks.pairs import save
from shadowsync.benchmarks.peers.peer_log import ROWS
from shadowsync.benchmarks.speed.steps.step import made_deliveries
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.runtime.process import tune_malloc
from shadowsync.nodes.worker.step import Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.tests.support.fake_streams import FakeStreams
from shadowsync.tests.support.tables.shared import on_fake_device

WARM_STEPS = 8


class IdleStreams(FakeStreams):
    """Works like a device until it is told to do nothing."""

    idle = False

    @property
    def torch_device(self) -> torch.device:  # type: ignore[override]
        """A device whose tensors have no memory, when idle."""
        return torch.device("meta" if self.idle else "cpu")

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[int, list[torch.Tensor]] = {}

    def pinned(self, elements: int) -> torch.Tensor:
        """Return memory that was used before, as torch's pinned memory is."""
        if not self.idle:
            return super().pinned(elements)
        if elements not in self._blocks:
            self._blocks[elements] = [torch.zeros(elements) for _ in range(4)]
        blocks = self._blocks[elements]
        blocks.append(blocks.pop(0))
        return blocks[-1]

    def copy(self, stream: Any, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy, unless idle."""
        if not self.idle:
            super().copy(stream, target, source)

    def graph(self, stream: Any, function: Callable[[], None]) -> Callable[[], None]:
        """Capture; when idle a replay does nothing."""
        replay = super().graph(stream, function)
        return lambda: None if self.idle else replay()


def context(batch: int, tables: str, distinct: bool) -> tuple[TrainerContext, IdleStreams]:
    """Return a trainer on an idle device."""
    job = Job.model_validate(
        {
            "data": {"format": "parquet", "path": ["none.parquet"]},
            "model": {"table_rows": ROWS, "embedding_dim": 16, "bottom": [512, 256, 64], "top": [512, 256]},
            "embedding": {"nodes": 2},
            "trainer": {"batch": batch, "distinct_rows": distinct, "precision": "float32"},
        }
    )
    plan = TablePlan.make(job.tables, 1 if tables == "whole" else 2)
    shared = TrainerContext.build(job, plan)
    streams = IdleStreams()
    return on_fake_device(shared, streams), streams


def measure(batch: int, tables: str, distinct: bool, locked: bool, steps: int) -> dict[str, Any]:
    """CPU milliseconds of a step, by part: median over the steps.

    `locked` says whether the vectors are in memory that is shared with the nodes, and locked.
    """
    shared, streams = context(batch, tables, distinct)
    random = np.random.default_rng(0)
    stepper, batches, locks = Stepper(shared), [], []
    for delivery in made_deliveries(4, batch):
        requests = shared.router.requests(delivery.rows)
        replies = [random.random(request.floats, dtype=np.float32) * 0.1 for request in requests]
        batches.append((delivery, requests, replies))
        locks += [shared.device.page_lock(reply) for reply in replies if locked]
    for number in range(WARM_STEPS):
        stepper.train(*batches[number % 4])
    assert stepper.captured_steps
    streams.idle = True
    captured = stepper._captured
    assert captured is not None
    for graph in captured._graphs.values():
        graph.block, graph.packed = graph.block.to("meta"), graph.packed.to("meta")
    parts: dict[str, list[float]] = {"stage": [], "launch": [], "finish": []}
    for number in range(steps):
        times = [time.thread_time()]
        step = stepper.stage(*batches[number % 4])
        times.append(time.thread_time())
        stepper.launch(step)
        times.append(time.thread_time())
        stepper.finish(step)
        times.append(time.thread_time())
        for name, began, ended in zip(parts, times, times[1:], strict=False):
            parts[name].append(1e3 * (ended - began))
        streams.log.clear()
    together = [sum(each) for each in zip(*parts.values(), strict=True)]
    assert stepper.captured_steps > steps
    floats = sum(request.floats for request in batches[0][1])
    return {
        "batch": batch,
        "tables": tables,
        "distinct_rows": distinct,
        "shared_memory": locked,
        "milliseconds": {name: float(np.median(each)) for name, each in parts.items()}
        | {"together": float(np.median(together)), "together, p10": float(np.percentile(together, 10))},
        "megabytes_each_way": floats * 4 / 1e6,
    }


def show(found: dict[str, Any]) -> None:
    """Print one measurement."""
    names = [f"batch {found['batch']:5,}", f"tables {found['tables']}"]
    names += [what for what in ("distinct_rows", "shared_memory") if found[what]]
    print(", ".join(names))
    for name, milliseconds in found["milliseconds"].items():
        print(f"  {name:15s} {milliseconds:7.3f} ms")


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("host_step.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    tune_malloc()
    results = []
    for batch in given.batch:
        for tables, distinct in (("whole", False), ("split", False), ("split", True)):
            for locked in (False, True):
                results.append(measure(batch, tables, distinct, locked, given.steps))
                show(results[-1])
    save(given.out, f"host CPU of a step on a device that does nothing, {given.steps} steps", results)


if __name__ == "__main__":
    main()
