"""Where the time of a training step goes.

    python benchmarks/speed/steps/step.py --batch 512 --precision bfloat16 --out step.json

One thread, no sockets: the parts of a worker's step one after the other, each timed by itself over many steps
(the peers' DLRM, one embedding node, SGD). `products` are the matrix products of the step alone, on matrices
of the same shapes: no step can be faster. Figures are wall microseconds, the 10th percentile and the median.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shadowsync.benchmarks.pairs import save
from shadowsync.benchmarks.peers.peer_log import DENSE, ROWS, TABLES
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.runtime.process import tune_malloc
from shadowsync.nodes.worker.step import Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.models.training.optimizers import EMA_EVERY
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.frames import decode, encode
from shadowsync.pipeline.wire.messages import Delivery, Lookup, Push, Vectors
from torch.nn.functional import linear

DIM = 16
WIDTHS = ((DENSE, 512, 256, 64, DIM), (DIM + 27 * 26 // 2 + 1, 512, 256, 1))
LAYERS = [pair for widths in WIDTHS for pair in pairwise(widths)]


class Parts:
    """Seconds of each part of a step by its name, one entry per step."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def timed(self, name: str, work: Callable[[], Any]) -> Any:
        """Time `work`, and return its result."""
        began = time.perf_counter()
        result = work()
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)
        return result

    def microseconds(self, name: str, percentile: float) -> float:
        """A percentile of a part's microseconds over the steps."""
        return float(np.percentile(self.seconds[name], percentile)) * 1e6


def made_deliveries(count: int, batch: int) -> list[Delivery]:
    """Batches with log-uniform ids and random labels."""
    random = np.random.default_rng(0)
    return [
        Delivery(
            sequence=number + 1,
            pass_number=0,
            id=BatchId(0, 0, number, 0),
            labels=(random.random(batch) < 0.25).astype(np.float32),
            dense=random.standard_normal((batch, DENSE)).astype(np.float32),
            rows=(ROWS ** random.random((TABLES, batch)) - 1).astype(np.int32),
        )
        for number in range(count)
    ]


def frames_of(message: Any) -> list[Any]:
    """The frames of a message as they arrive: in their own memory."""
    return [bytearray(memoryview(frame)) for frame in encode(message)]


def one_step(
    parts: Parts, stepper: Stepper, shared: TrainerContext, delivered: list[Any], values: Any
) -> None:
    """Do a worker's step without sockets.

    `delivered` are the frames of its batch, `values` the vectors.
    """
    delivery = parts.timed("decode the batch", lambda: decode(delivered))
    requests = parts.timed("route its rows", lambda: shared.router.requests(delivery.rows))
    request = requests[0]
    parts.timed("encode the lookup", lambda: encode(Lookup(1, request.rows, request.counts)))
    reply = frames_of(Vectors(1, 0, values))
    vectors = parts.timed("decode the vectors", lambda: decode(reply)).values
    step = parts.timed("stage the batch", lambda: stepper.stage(delivery, requests, [vectors]))
    parts.timed("join, forward, backward, update", lambda: stepper.launch(step))
    _, gradients = parts.timed("take the gradients", lambda: stepper.finish(step))
    push = Push(1, delivery.id, 0, request.rows, gradients[0], 1.0, request.counts)
    parts.timed("encode the push", lambda: encode(push))


def products(parts: Parts, batch: int, dtype: torch.dtype) -> int:
    """Do the products of one step, forward and backward.

    Returns their floating point operations.
    """
    operations = 0
    for layer, (width_in, width_out) in enumerate(LAYERS):
        inputs, weights = torch.randn(batch, width_in).to(dtype), torch.randn(width_out, width_in).to(dtype)
        slope = torch.randn(batch, width_out).to(dtype)
        parts.timed("products", partial(linear, inputs, weights))
        parts.timed("products", partial(torch.mm, slope.t(), inputs))
        if layer:
            # The first layer's input is data, which needs no gradient.
            parts.timed("products", partial(torch.mm, slope, weights))
        operations += 2 * batch * width_in * width_out * (3 if layer else 2)
    return operations


def summed(parts: Parts, every: int) -> list[float]:
    """Seconds of all products of each step; a step has `every` products."""
    found = np.array(parts.seconds["products"]).reshape(-1, every)
    return list(found.sum(axis=1))


def context_of(batch: int, precision: str, ema: float | None = None) -> TrainerContext:
    """A trainer's context with the model of these figures."""
    trainer = {"batch": batch, "precision": precision, "optimizer": "sgd", "lr": 0.01, "ema": ema}
    # Each place of a batch has its own vector.
    trainer["exact_rows"] = False
    sections = {
        "data": {"format": "parquet", "path": ["none.parquet"]},
        "model": {"table_rows": ROWS, "embedding_dim": DIM, "bottom": [512, 256, 64], "top": [512, 256]},
        "embedding": {"optimizer": "sgd"},
        "trainer": trainer,
    }
    job = Job.model_validate(sections)
    return TrainerContext.build(job, TablePlan.make(job.tables, job.embedding.nodes))


def input_of(batch: int) -> tuple[list[Any], Any]:
    """The frames of 20 batches, and vectors of each."""
    delivered = [frames_of(delivery) for delivery in made_deliveries(20, batch)]
    return delivered, np.random.default_rng(1).random(TABLES * batch * DIM, dtype=np.float32) * 0.1


def measure_average(batch: int, precision: str, steps: int) -> dict[str, Any]:
    """CPU time that a moving average adds to a step.

    Blocks of `EMA_EVERY` steps without and with it take turns; the ratio is of their medians.
    """
    seconds: dict[bool, list[float]] = {False: [], True: []}
    each = {
        with_average: context_of(batch, precision, 0.999 if with_average else None)
        for with_average in seconds
    }
    steppers = {with_average: Stepper(shared) for with_average, shared in each.items()}
    delivered, values = input_of(batch)
    for block in range(max(2, steps // EMA_EVERY)):
        for with_average, shared in each.items():
            began = time.thread_time()
            for number in range(EMA_EVERY):
                frames = delivered[(block * EMA_EVERY + number) % 20]
                one_step(Parts(), steppers[with_average], shared, frames, values)
            seconds[with_average].append(time.thread_time() - began)
    without, averaging = (float(np.median(some[1:])) / EMA_EVERY * 1e6 for some in seconds.values())
    return {
        "batch": batch,
        "precision": each[True].precision,
        "step_cpu_microseconds": without,
        "with_average_cpu_microseconds": averaging,
    }


def measure(batch: int, precision: str, steps: int) -> dict[str, Any]:
    """All figures of one batch size and precision."""
    shared = context_of(batch, precision)
    stepper = Stepper(shared)
    delivered, values = input_of(batch)
    parts, warm = Parts(), Parts()
    for number in range(20):
        one_step(warm, stepper, shared, delivered[number], values)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for number in range(steps):
        one_step(parts, stepper, shared, delivered[number % 20], values)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    found = {name: [parts.microseconds(name, p) for p in (10, 50)] for name in parts.seconds}
    dtype = torch.bfloat16 if shared.precision == "bfloat16" else torch.float32
    floor, operations = Parts(), 0
    for _ in range(min(steps, 200)):
        operations = products(floor, batch, dtype)
    floor_seconds = summed(floor, 3 * len(LAYERS) - 1)
    return {
        "batch": batch,
        "precision": shared.precision,
        "parts_microseconds_p10_median": found,
        "products_microseconds_p10_median": [float(np.percentile(floor_seconds, p)) * 1e6 for p in (10, 50)],
        "products_flop": operations,
        "page_faults_a_step": faults / steps,
    }


def show(found: dict[str, Any]) -> None:
    """Print one measurement."""
    print(f"\nbatch {found['batch']}, {found['precision']}: microseconds, p10 and median")
    total = np.zeros(2)
    for name, both in found["parts_microseconds_p10_median"].items():
        print(f"  {name:28s} {both[0]:9.1f} {both[1]:9.1f}")
        total += both
    floor = found["products_microseconds_p10_median"]
    print(f"  {'together':28s} {total[0]:9.1f} {total[1]:9.1f}")
    rate = found["products_flop"] / floor[0] / 1e3
    print(f"  {'its matrix products alone':28s} {floor[0]:9.1f} {floor[1]:9.1f}  ({rate:.0f} GFLOP/s)")
    print(f"  the step is {floor[0] / total[0]:.2f} products; {found['page_faults_a_step']:.1f} page faults")


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--precision", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--faults", action="store_true", help="give freed memory back to the kernel")
    parser.add_argument(
        "--ema", action="store_true", help="what a moving average adds, in place of the parts"
    )
    parser.add_argument("--out", type=Path, default=Path("step.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    if not given.faults:
        tune_malloc()
    if given.ema:
        averages = [
            measure_average(batch, way, given.steps) for batch in given.batch for way in given.precision
        ]
        for found in averages:
            without, averaging = found["step_cpu_microseconds"], found["with_average_cpu_microseconds"]
            words = f"{without:.0f} microseconds of CPU a step, {averaging:.0f} with a moving average"
            print(f"batch {found['batch']}, {found['precision']}: {words} ({averaging / without - 1:+.2%})")
        save(given.out, f"a moving average of the model, {given.steps} steps", averages)
        return
    results = [measure(batch, way, given.steps) for batch in given.batch for way in given.precision]
    for found in results:
        show(found)
    save(given.out, f"the parts of a training step, {given.steps} steps", results)


if __name__ == "__main__":
    main()
