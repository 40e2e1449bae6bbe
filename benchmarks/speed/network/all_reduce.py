"""All-reduce of a flat buffer: ours beside gloo's.

Ours is `meet` and `mean` as an algorithm calls them, into a new tensor; gloo's is
`torch.distributed.all_reduce` in place, a sum. Both run in the same processes of one machine, by turns.
The time is that of the slowest process, from the moment that all were told to start; CPU is the mean of all.

Use: python benchmarks/speed/network/all_reduce.py [--processes 2 --processes 4] [--transport tcp]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
import zmq
from shadowsync.benchmarks.pairs import Figures, alternate, ratio, save, show_ratio, table
from shadowsync.nodes.allreduce.round import PeerCallbacks
from shadowsync.nodes.allreduce.sockets import PeerListener
from shadowsync.nodes.allreduce.transport import AllReduceTransport
from shadowsync.pipeline.codecs.formats import LinkCodecs
from shadowsync.pipeline.config.sections import SyncSection
from shadowsync.pipeline.wire.control.orders import MemberInfo
from shadowsync.sync_algos.none import NoSync

ADDRESSES = {"tcp": "tcp://127.0.0.1:0", "ipc": "ipc://@shadowsync-all-reduce-{pid}"}


@dataclass(frozen=True)
class Setup:
    """What is measured."""

    processes: int
    elements: int
    chunk_bytes: int
    transport: str


def _nothing(*_: object) -> None:
    """No trainer is late or excluded here, and nobody else is waited for."""


def serve(rank: int, setup: Setup, folder: str, pipe: Connection) -> None:
    """Measure in one process what is asked for, until None comes."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=setup.processes)
    asyncio.run(_serve(rank, setup, pipe))
    dist.destroy_process_group()


async def _serve(rank: int, setup: Setup, pipe: Connection) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    listener = PeerListener(context, ADDRESSES[setup.transport].format(pid=os.getpid()))
    pipe.send(listener.endpoint)
    members = [
        MemberInfo(f"trainer-{index}", "trainer", index, f"token-{index}", endpoint)
        for index, endpoint in enumerate(pipe.recv())
    ]
    transport = AllReduceTransport(
        listener,
        context,
        members,
        rank,
        f"token-{rank}",
        numel=setup.elements,
        seed=0,
        sync=SyncSection(chunk_bytes=setup.chunk_bytes, timeout_seconds=60.0),
        codecs=LinkCodecs(),
        algorithm=NoSync(None),
        callbacks=PeerCallbacks(_nothing, _nothing, _nothing),
    )
    transport.regroup(1, range(len(members)))
    values = torch.randn(setup.elements, generator=torch.Generator().manual_seed(rank))
    buffer = values.clone()
    while (asked := await asyncio.to_thread(pipe.recv)) is not None:
        which, repeats = asked
        # Sums of sums must not overflow.
        buffer.copy_(values)
        started, cpu = time.perf_counter(), time.process_time()
        for _ in range(repeats):
            if which == "gloo":
                dist.all_reduce(buffer)
            else:
                await (await transport.meet()).mean(values)
        seconds = (time.perf_counter() - started) / repeats
        pipe.send((seconds, (time.process_time() - cpu) / repeats))
    transport.close()
    context.term()


class Processes:
    """The measuring processes."""

    def __init__(self, setup: Setup, folder: str) -> None:
        self._elements = setup.elements
        spawn = multiprocessing.get_context("spawn")
        pipes = [spawn.Pipe() for _ in range(setup.processes)]
        self._pipes = [ours for ours, _ in pipes]
        self._processes = [
            spawn.Process(target=serve, args=(rank, setup, folder, theirs))
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()
        endpoints = [pipe.recv() for pipe in self._pipes]
        for pipe in self._pipes:
            pipe.send(endpoints)

    def measure(self, which: str, repeats: int) -> Figures:
        """Return milliseconds of one all-reduce, and CPU milliseconds and microseconds a MB of a process."""
        for pipe in self._pipes:
            pipe.send((which, repeats))
        measured = [pipe.recv() for pipe in self._pipes]
        cpu_seconds = sum(cpu for _, cpu in measured) / len(measured)
        return {
            "ms": max(seconds for seconds, _ in measured) * 1e3,
            "cpu_ms": cpu_seconds * 1e3,
            "cpu_us_per_MB": cpu_seconds * 1e6 / (self._elements * 4 / 1e6),
        }

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(30)


def compare(setup: Setup, rounds: int, repeats: int) -> dict[str, list[Figures]]:
    """Measure ours and gloo's in alternation; print and return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        processes = Processes(setup, folder)
        for which in ("ours", "gloo"):
            processes.measure(which, 2)
        results = alternate(
            {which: partial(processes.measure, which, repeats) for which in ("ours", "gloo")}, rounds
        )
        processes.close()
    print(f"\n{setup}\n{table(results)}")
    for key in ("ms", "cpu_ms"):
        gloo, ours = ([row[key] for row in results[which]] for which in ("gloo", "ours"))
        print(show_ratio(f"gloo's {key} over ours", ratio(gloo, ours)))
    return results


def main() -> None:
    """Measure and print; with --out also write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, action="append")
    parser.add_argument("--megabytes", type=float, default=40.0)
    parser.add_argument("--chunk-bytes", type=int, default=1 << 20)
    parser.add_argument("--transport", choices=sorted(ADDRESSES), default="tcp")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    measured = {}
    for processes in given.processes or [2, 4]:
        setup = Setup(processes, int(given.megabytes * 1e6 / 4), given.chunk_bytes, given.transport)
        measured[f"{processes} processes, {given.transport}"] = compare(setup, given.rounds, given.repeats)
    if given.out:
        save(given.out, f"all-reduce of {given.megabytes:g} MB", measured)


if __name__ == "__main__":
    main()
