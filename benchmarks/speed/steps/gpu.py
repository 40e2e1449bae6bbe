"""Trainers on a GPU: steps, whole jobs, quality by depth, and the device's busy share.

    python benchmarks/speed/steps/gpu.py [--device cuda] [--seconds 600] [--parts steps loops ...] \\
        [--out benchmarks/speed/results/gpu.json]

Parts, in this order, each written as it ends; one that would begin after `--seconds` is left out:

- `steps`: a worker's steps alone, over a batch in memory, in float32 and bfloat16, captured and eager;
- `loops`: the same model in plain torch with its tables on the GPU, see gpu_loops.py;
- `torchrec`: whether TorchRec is there;
- `jobs`: a whole job, whose reader or embedding node may limit a GPU, with 1, 2 and 4 embedding threads;
- `depth`: NE of a whole job, three seeds with 0, 1 and 8 lookups ahead.

The busy share of `steps` is the time between events around each step, over all time; that of `jobs` is
nvidia-smi's utilization, start and end included: a lower bound.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from shadowsync.benchmarks.job_runs import log_or_generated, on_log, run_job
from shadowsync.benchmarks.pairs import save
from shadowsync.benchmarks.speed.steps.gpu_loops import KINDS, examples_per_second
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.worker import captured_steps
from shadowsync.nodes.worker.step import Step, Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.jobfile.load import validate_job
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.messages import Delivery

ROWS, TABLES, DENSE = 50_000, 26, 13
STEP_SECONDS = 4.0
BATCHES = (2048, 8192)
SEEDS = (1, 2, 3)
WARM_STEPS = 20


def job_of(device: str, batch: int, precision: str = "float32") -> Job:
    """Return the job whose steps are measured."""
    trainer = {"device": device, "batch": batch, "precision": precision}
    data = {"format": "parquet", "path": ["none"]}
    return validate_job({"data": data, "model": {"table_rows": ROWS}, "trainer": trainer}, where="steps")


def _delivery(batch: int) -> Delivery:
    random = np.random.default_rng(0)
    return Delivery(
        sequence=1,
        pass_number=0,
        id=BatchId(0, 0, 0, 1),
        labels=(random.random(batch) < 0.25).astype(np.float32),
        dense=random.normal(0, 1, (batch, DENSE)).astype(np.float32),
        rows=random.integers(0, ROWS, (TABLES, batch), dtype=np.int32),
    )


class _Events:
    """Device time between the begin and the end of each step."""

    def __init__(self, device: str) -> None:
        self._counts = device.startswith("cuda")
        self._pairs: list[tuple[Any, Any]] = []

    @contextmanager
    def around(self, stepper: Stepper) -> Iterator[None]:
        """Measure what the block enqueues on the worker's stream."""
        if not self._counts:
            yield
            return
        stream = stepper._stream._compute  # type: ignore[attr-defined]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record(stream)
        yield
        end.record(stream)
        self._pairs.append((begin, end))

    def seconds(self) -> float:
        """Return the sum, once all is done."""
        return sum(float(begin.elapsed_time(end)) for begin, end in self._pairs) / 1e3


def step_figures(device: str, batch: int, precision: str, *, captured: bool) -> dict[str, float]:
    """Measure one worker's steps, on the same batch again and again."""
    job = job_of(device, batch, precision)
    shared = TrainerContext.build(job, TablePlan.make(job.tables, job.embedding.nodes))
    delivery, launched, told = _delivery(batch), list[Step](), list[str]()
    requests = shared.router.requests(delivery.rows)
    replies = [np.full(request.floats, 0.01, np.float32) for request in requests]
    locks = [shared.device.page_lock(reply) for reply in replies]
    with mock.patch.object(captured_steps, "EAGER_STEPS", 3 if captured else 10**9):
        stepper, events = Stepper(shared, told.append), _Events(device)

        def one() -> None:
            launched.append(stepper.stage(delivery, requests, replies))
            with events.around(stepper):
                stepper.launch(launched[-1])
            while len(launched) > stepper.ahead:
                stepper.finish(launched.pop(0))

        for _ in range(WARM_STEPS):
            one()
        events = _Events(device)
        began, cpu, done = time.perf_counter(), time.thread_time(), 0
        while time.perf_counter() - began < STEP_SECONDS:
            one()
            done += 1
        while launched:
            stepper.finish(launched.pop(0))
    seconds, host = time.perf_counter() - began, time.thread_time() - cpu
    del locks
    return {
        "examples/s": done * batch / seconds,
        "milliseconds": 1e3 * seconds / done,
        "host CPU milliseconds": 1e3 * host / done,
        "busy": events.seconds() / seconds,
        "captured": float(stepper.captured_steps > 0),
    }


def steps(device: str, log: Path) -> Iterator[tuple[str, Any]]:  # noqa: ARG001
    """Yield figures of steps, by name."""
    for batch in BATCHES:
        for precision in ("float32", "bfloat16"):
            for captured in (True, False):
                name = f"{batch} {precision} {'captured' if captured else 'eager'}"
                yield name, step_figures(device, batch, precision, captured=captured)


def loops(device: str, log: Path) -> Iterator[tuple[str, Any]]:  # noqa: ARG001
    """Yield examples/s of plain torch, by name."""
    for batch in BATCHES:
        for kind in KINDS if device.startswith("cuda") else KINDS[:2]:
            yield (
                f"{batch} {kind}",
                examples_per_second(job_of(device, batch), kind, device, batch, STEP_SECONDS),
            )


def torchrec(device: str, log: Path) -> Iterator[tuple[str, Any]]:  # noqa: ARG001
    """Yield whether TorchRec can be imported; benchmarks/peers measures it."""
    yield "is there", importlib.util.find_spec("torchrec") is not None


def whole_job(
    log: Path, device: str, trainer: dict[str, Any], threads: int = 1, seed: int = 1
) -> dict[str, float]:
    """Return figures of a job with one trainer on the device."""
    sections: dict[str, dict[str, Any]] = on_log(log, seed=seed)
    sections["model"] = {"table_rows": ROWS}
    sections["trainer"] = {"count": 1, "workers": 1, "batch": 2048, "device": device} | trainer
    sections["embedding"] = {"threads": threads, "warmup_iterations": 30}
    sections["sync"] = {"algorithm": "none"}
    with _busy_share(device) as busy:
        report = run_job(sections)
    assert report.eval is not None
    return {
        "examples/s": report.throughput.examples_per_second or 0.0,
        "CPU s / million": report.throughput.cpu_seconds_per_million or 0.0,
        "NE": report.eval.ne or float("nan"),
        **({"busy": sum(busy) / len(busy), "busiest": max(busy)} if busy else {}),
    }


@contextmanager
def _busy_share(device: str) -> Iterator[list[float]]:
    """Fill the list with the GPU's utilization, 0 to 1, while the block runs."""
    samples: list[float] = []
    if not device.startswith("cuda"):
        yield samples
        return
    index = device.partition(":")[2] or "0"
    command = ["nvidia-smi", "-i", index, "--query-gpu=utilization.gpu"]
    command += ["--format=csv,noheader,nounits", "-lms", "200"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = process.stdout
        reader = threading.Thread(target=lambda: samples.extend(float(line) / 100 for line in lines))
        reader.start()
        try:
            yield samples
        finally:
            process.terminate()
            reader.join()


def jobs(device: str, log: Path) -> Iterator[tuple[str, Any]]:
    """Yield figures of whole jobs, by name."""
    for threads in (1, 2, 4):
        yield f"{threads} embedding threads", whole_job(log, device, {}, threads)
    yield "on the CPU", whole_job(log, "cpu", {})


def depth(device: str, log: Path) -> Iterator[tuple[str, Any]]:
    """Yield NE by depth and seed."""
    for seed in SEEDS:
        for ahead in (0, 1, 8):
            trainer = {"lookups_ahead": ahead, "credit": ahead + 4}
            yield f"{ahead} lookups ahead, seed {seed}", whole_job(log, device, trainer, seed=seed)["NE"]


PARTS: dict[str, Callable[[str, Path], Iterator[tuple[str, Any]]]] = {
    "steps": steps,
    "loops": loops,
    "torchrec": torchrec,
    "jobs": jobs,
    "depth": depth,
}


def main() -> None:
    """Measure, print and write; the file is written after each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--log", type=Path, help="a generated log; one is made without it")
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    began, found = time.monotonic(), dict[str, Any]()
    gpu = torch.cuda.get_device_name(given.device) if given.device.startswith("cuda") else "none"
    with log_or_generated(given.log, given.examples, eval_examples=50_000) as log:
        for part in given.parts:
            for name, figures in PARTS[part](given.device, log):
                found.setdefault(part, {})[name] = figures
                print(f"{part}: {name}: {figures}", flush=True)
                save(given.out, (__doc__ or "").splitlines()[0], {"gpu": gpu, "found": found})
                if time.monotonic() - began > given.seconds:
                    print(f"stopped after {given.seconds:.0f} s, in {part}")
                    return


if __name__ == "__main__":
    main()
