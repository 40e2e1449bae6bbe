"""Many trainers against one link of limited bandwidth.

Figures are steps/s, sync gap and bytes for 1 to 32 trainers.

    sudo python benchmarks/scaling.py --out docs/results/scaling.json

Computing is emulated (a sleep of a step's length, since 32 trainers do not fit on two cores); everything
about synchronization is real: the model's size, the shadow threads, the messages, the sync nodes. Each sync
node sits in a network namespace of its own, behind a link whose rate is limited in both directions.

What arithmetic predicts, with s the step's seconds, B the bytes of an exchange in one direction over one
link, C the link's bytes/s and n trainers: shadow keeps n / s steps/s whatever the link does, and its gap is
the steps in max(shadow's own pause, n B / C); at a fixed rate k, steps/s are at most
min(n k / (k s + 2 B / C), k C / B).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import zmq
from shadowsync.benchmarks.limited_links import LimitedLinks
from shadowsync.benchmarks.pairs import Figures, save
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.shadow.fixed_rate import CenterRounds
from shadowsync.nodes.shadow.links import LinkConfig, ZmqPeers
from shadowsync.nodes.shadow.rounds import RoundCounter
from shadowsync.nodes.shadow.thread import ShadowThread
from shadowsync.nodes.sync.center import CenterState
from shadowsync.nodes.sync.role import CenterService
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.jobfile.load import validate_job
from shadowsync.pipeline.wire.control.orders import MemberInfo
from shadowsync.pipeline.wire.sockets import Listener
from shadowsync.sync_algos.registry import make_algorithm

EVERY = 5
PORT = 5555
TRAINERS_A_PROCESS = 8


def job_of(mode: str, sync_nodes: int) -> Any:
    """The job whose dense model is synchronized.

    The model is the DLRM of the peers' comparison.
    """
    return validate_job(
        {
            "data": {"format": "parquet", "path": ["none"]},
            "trainer": {"workers": 1},
            "sync": {
                "algorithm": "easgd",
                "mode": mode,
                "every": EVERY,
                "nodes": sync_nodes,
                # A full link makes rounds long; sending again would fill it further.
                "timeout_seconds": 120.0,
            },
        },
        where="scaling",
    )


def build_shared(mode: str, sync_nodes: int) -> TrainerContext:
    """The context of a trainer of such a job.

    It is the same whatever became of the job's tables.
    """
    job = job_of(mode, sync_nodes)
    return TrainerContext.build(job, TablePlan.make(job.tables, job.embedding.nodes))


class EmulatedTrainer:
    """A replica that nobody trains, and all of a trainer's synchronization."""

    def __init__(self, index: int, mode: str, syncs: list[MemberInfo], context: Any, step: float) -> None:
        self._shared = build_shared(mode, len(syncs))
        self._step_seconds = step
        self.rounds = RoundCounter(self._shared.total_iterations)
        algorithm = make_algorithm("easgd", {})
        self._settings = LinkConfig(context, algorithm, syncs, [], index, f"trainer-{index}")
        self._own = CenterRounds(0, self._shared, self._settings, self.rounds) if mode == "fixed" else None
        self.shadow = ShadowThread(self._shared, algorithm, self._open, self.rounds, None, _fail)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        """Begin the steps and, in shadow mode, the rounds."""
        self.shadow.start()
        self.shadow.begin()
        self._thread.start()

    async def seed(self) -> None:
        """Give the center its first value; call it before `start`."""
        center = self._settings.open_center(self._shared, "seed")
        assert center is not None
        await center.seed(self._shared.replica.flat)
        await center.close()

    def figures(self) -> dict[str, Any]:
        """Counts so far."""
        own = self._own.bytes if self._own is not None else (0, 0)
        moved = sum(own) + sum(self.shadow.bytes())
        return self.rounds.metrics() | {"steps": self._shared.total_iterations(), "bytes": moved}

    def stop(self) -> None:
        """Begin no further step and no round."""
        self._stop.set()
        self.shadow.stop()

    def join(self) -> None:
        """Wait for both threads."""
        self._thread.join()
        self.shadow.join(60.0)

    def _open(self) -> ZmqPeers:
        center = self._settings.open_center(self._shared, "shadow")
        return ZmqPeers(0, center, None)

    def _work(self) -> None:
        torch.set_num_threads(1)
        while not self._stop.wait(self._step_seconds):
            self._shared.replica.flat.add_(1e-6)
            self._shared.iterations[0] += 1
            if self._own is not None:
                self._own.after_iteration()
        if self._own is not None:
            self._own.close()


def _fail(error: BaseException) -> None:
    raise error


def serve(address: str) -> None:
    """Serve as a sync node until its standard input ends."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    state = CenterState(make_algorithm("easgd", {}).center_rule)
    service = CenterService(Listener(context, address), state, _fail)
    service.start()
    print("ready", flush=True)
    sys.stdin.read()
    service.stop()
    service.join(10.0)
    # Frames may still be on their way from memory that ends with the process.
    context.term()


def train(addresses: list[str], first: int, count: int, mode: str, step: float) -> None:
    """Run `count` emulated trainers.

    It says "ready", starts on a line of input, and prints figures for each line.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    syncs = [MemberInfo(f"sync-{i}", "sync", i, f"s{i}", address) for i, address in enumerate(addresses)]
    trainers = [EmulatedTrainer(first + i, mode, syncs, context, step) for i in range(count)]
    if first == 0:
        asyncio.run(trainers[0].seed())
    print("ready", flush=True)
    sys.stdin.readline()
    for trainer in trainers:
        trainer.start()
    while sys.stdin.readline():
        print(json.dumps([trainer.figures() for trainer in trainers]), flush=True)
    for trainer in trainers:
        trainer.stop()
    for trainer in trainers:
        trainer.join()
    context.term()


@dataclass(frozen=True)
class Cell:
    """One measurement."""

    trainers: int
    mode: str
    sync_nodes: int

    @property
    def name(self) -> str:
        """Name of the cell for tables."""
        kind = "shadow" if self.mode == "shadow" else f"fixed {EVERY}"
        return f"{kind}, {self.sync_nodes} sync, {self.trainers} trainers"


def measure(cell: Cell, links: LimitedLinks, step: float, warm_seconds: float, seconds: float) -> Figures:
    """Measure one cell between two readings.

    All processes are started and warmed up before the first.
    """
    me = [sys.executable, __file__]
    addresses = [f"tcp://{links.address(i)}:{PORT}" for i in range(cell.sync_nodes)]
    nodes = [_start(links.on_far_side(i, [*me, "--serve", addresses[i]])) for i in range(cell.sync_nodes)]
    groups = []
    for first in range(0, cell.trainers, TRAINERS_A_PROCESS):
        count = min(TRAINERS_A_PROCESS, cell.trainers - first)
        what = json.dumps([addresses, first, count, cell.mode, step])
        groups.append(_start(links.on_near_side([*me, "--train", what])))
    try:
        for group in groups:
            _tell(group, "go")
        time.sleep(warm_seconds)
        before, at = _figures(groups), time.monotonic()
        time.sleep(seconds)
        after, passed = _figures(groups), time.monotonic() - at
    finally:
        for processes in (groups, nodes):
            for process in processes:
                assert process.stdin is not None
                process.stdin.close()
            for process in processes:
                process.wait(timeout=120)
    return _summary(before, after, passed)


def _summary(before: list[dict[str, Any]], after: list[dict[str, Any]], passed: float) -> Figures:
    def grown(key: str) -> list[float]:
        return [b[key] - a[key] for a, b in zip(before, after, strict=True)]

    rounds = grown("rounds")
    gaps = [gap / count for gap, count in zip(grown("gap_sum"), rounds, strict=True) if count]
    if len(gaps) < len(rounds):
        print("  some trainers completed no round", flush=True)
    return {
        "steps_per_second": sum(grown("steps")) / passed,
        "gap_mean": sum(gaps) / len(gaps) if gaps else float("nan"),
        "bytes_per_second": sum(grown("bytes")) / passed,
        "rounds_per_second": sum(rounds) / passed,
        "round_seconds": sum(grown("round_seconds")) / max(1.0, sum(rounds)),
        "round_cpu_seconds": sum(grown("round_cpu_seconds")) / max(1.0, sum(rounds)),
    }


def predict(cell: Cell, figures: Figures, step: float, model_bytes: int, link: float, duty: float) -> Figures:
    """What arithmetic predicts, by the formulas of the module.

    Of the measurement it takes the CPU seconds of a round only.
    """
    part = model_bytes / cell.sync_nodes
    n = cell.trainers
    if cell.mode == "shadow":
        period = max(figures["round_cpu_seconds"] / duty, 2 * part / link, n * part / link)
        return {"predicted_steps_per_second": n / step, "predicted_gap": period / step}
    steps = min(n * EVERY / (EVERY * step + 2 * part / link), EVERY * link / part)
    return {"predicted_steps_per_second": steps, "predicted_gap": float(EVERY)}


def _start(command: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"{command} did not start")
    return process


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _figures(groups: list[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    for group in groups:
        _tell(group, "figures")
    found: list[dict[str, Any]] = []
    for group in groups:
        assert group.stdout is not None
        found += json.loads(group.stdout.readline())
    return found


def main() -> None:
    """Run all cells and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--trainers", default="1,2,4,8,16,32")
    parser.add_argument("--sync-nodes", default="1,4")
    parser.add_argument("--step-seconds", type=float, default=0.05)
    parser.add_argument("--rate-mbit", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warm-seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.serve:
        return serve(given.serve)
    if given.train:
        return train(*json.loads(given.train))
    link, step = given.rate_mbit * 1e6 / 8, given.step_seconds
    model_bytes = build_shared("shadow", 1).replica.numel * 4
    duty = job_of("shadow", 1).sync.duty
    rows = []
    with LimitedLinks(4, given.rate_mbit) as links:
        for nodes in map(int, given.sync_nodes.split(",")):
            for trainers in map(int, given.trainers.split(",")):
                for mode in ("shadow", "fixed"):
                    cell = Cell(trainers, mode, nodes)
                    figures = measure(cell, links, step, given.warm_seconds, given.seconds)
                    figures |= predict(cell, figures, step, model_bytes, link, duty)
                    rows.append(vars(cell) | figures)
                    shown = "  ".join(f"{key} {value:,.4g}" for key, value in figures.items())
                    print(f"{cell.name:36} {shown}", flush=True)
    if given.out:
        setting = {"step_seconds": step, "rate_mbit": given.rate_mbit, "model_bytes": model_bytes}
        save(given.out, "emulated trainers behind limited links", {"setting": setting, "cells": rows})
    return None


if __name__ == "__main__":
    main()
