"""Trainers on a GPU: their speed and its busy share.

    python benchmarks/speed/gpu.py [--device cuda] [--rounds 10] [--batch 2048] \\
        [--out benchmarks/speed/results/gpu.json]

Compared are the GPU with the CPU, bfloat16 with float32, 2 and 4 workers with 1, and shadow EASGD with no
synchronization.

"steps" are a worker's steps alone, over a batch in memory: the speed of the device. "job" is a whole job,
whose reader or embedding node may limit a GPU. All runs alternate, and each comparison is a paired ratio with
a 95% bootstrap interval. The busy share is nvidia-smi's utilization, sampled five times a second while a job
runs, start and end included: a lower bound.
"""

from __future__ import annotations

import argparse
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shadowsync.benchmarks.job_runs import log_or_generated, on_log, run_job
from shadowsync.benchmarks.pairs import Figures, Results, alternate, ratio, save, show_ratio, table
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.worker.step import Step, Stepper
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.jobfile.load import validate_job
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.messages import Delivery

ROWS, TABLES, DENSE = 50_000, 26, 13
STEP_SECONDS = 5.0


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


def steps(device: str, workers: int, batch: int, precision: str) -> Figures:
    """Examples/s of the workers' steps alone, on the same batch again and again."""
    trainer = {"device": device, "workers": workers, "batch": batch, "precision": precision}
    data = {"format": "parquet", "path": ["none"]}
    job = validate_job({"data": data, "model": {"table_rows": ROWS}, "trainer": trainer}, where="steps")
    shared = TrainerContext.build(job, TablePlan.make(job.tables, job.embedding.nodes))
    start = threading.Barrier(workers)

    def work() -> tuple[int, float]:
        torch.set_num_threads(1)
        stepper, delivery = Stepper(shared), _delivery(batch)
        requests = shared.router.requests(delivery.rows)
        replies = [np.full(request.floats, 0.01, np.float32) for request in requests]
        launched: list[Step] = []

        def one() -> None:
            launched.append(stepper.stage(delivery, requests, replies))
            stepper.launch(launched[-1])
            while len(launched) > stepper.ahead:
                stepper.finish(launched.pop(0))

        for _ in range(10):
            one()
        start.wait()
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < STEP_SECONDS:
            one()
            done += batch
        while launched:
            stepper.finish(launched.pop(0))
        return done, time.perf_counter() - began

    with ThreadPoolExecutor(workers) as threads:
        ended = [future.result() for future in [threads.submit(work) for _ in range(workers)]]
    return {"examples/s": sum(done for done, _ in ended) / max(seconds for _, seconds in ended)}


def job(log: Path, device: str, workers: int, batch: int, precision: str, algorithm: str) -> Figures:
    """One job's figures: one trainer with this many workers on the device."""
    sections: dict[str, dict[str, Any]] = on_log(log, seed=1)
    sections["model"] = {"table_rows": ROWS}
    sections["trainer"] = {
        "count": 1,
        "workers": workers,
        "batch": batch,
        "device": device,
        "precision": precision,
    }
    sections["sync"] = {"algorithm": algorithm}
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


def runs_on(log: Path, device: str, batch: int) -> dict[str, Callable[[], Figures]]:
    """The runs by name."""
    runs: dict[str, Callable[[], Figures]] = {}
    for where, workers, precision in (
        ("cpu", 1, "float32"),
        (device, 1, "float32"),
        (device, 2, "float32"),
        (device, 4, "float32"),
        (device, 1, "bfloat16"),
    ):
        name = f"{where} {workers} {precision}"
        runs[f"steps {name}"] = partial(steps, where, workers, batch, precision)
        runs[f"job {name} none"] = partial(job, log, where, workers, batch, precision, "none")
    runs[f"job {device} 1 float32 easgd"] = partial(job, log, device, 1, batch, "float32", "easgd")
    return runs


def compare(results: Results, device: str) -> dict[str, dict[str, float]]:
    """The ratios between the runs, each with its interval."""

    def over(first: str, second: str) -> dict[str, float]:
        one, other = ([row["examples/s"] for row in results[name]] for name in (first, second))
        return ratio(one, other)

    plain = f"{device} 1 float32"
    ratios = {"job, easgd in the shadow / none": over(f"job {plain} easgd", f"job {plain} none")}
    for what, end in (("steps", ""), ("job", " none")):
        ratios[f"{what}, GPU / CPU"] = over(f"{what} {plain}{end}", f"{what} cpu 1 float32{end}")
        ratios[f"{what}, bfloat16 / float32"] = over(
            f"{what} {device} 1 bfloat16{end}", f"{what} {plain}{end}"
        )
        for workers in (2, 4):
            several = f"{what} {device} {workers} float32{end}"
            ratios[f"{what}, {workers} workers / 1"] = over(several, f"{what} {plain}{end}")
    return ratios


def main() -> None:
    """Measure, print and write; the file is written after each round."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--log", type=Path, help="a generated log; one is made without it")
    parser.add_argument("--examples", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = options.device

    def keep(results: Results) -> None:
        if options.out is None:
            return
        gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else "none"
        settings = {"rounds": options.rounds, "batch": options.batch, "examples": options.examples}
        what, ratios = (__doc__ or "").splitlines()[0], compare(results, device)
        save(options.out, what, {"gpu": gpu, "runs": results, "ratios": ratios, "settings": settings})

    with log_or_generated(options.log, options.examples, eval_examples=50_000) as log:
        results = alternate(runs_on(log, device, options.batch), options.rounds, keep)
    print(table(results))
    for name, value in compare(results, device).items():
        print(show_ratio(name, value))


if __name__ == "__main__":
    main()
