"""All-reduce of a flat buffer: ours against gloo.

The processes are on one machine; gloo is torch.distributed's. Both run in the same processes, in alternation.
Ours is `meet` and `mean` as an algorithm calls them, into a new tensor; gloo's is `all_reduce` in place, a
sum. With two processes also `raw`: plain TCP sockets and nothing around them, the least that it can cost. A
figure is the time of the slowest process, from the moment that all were told to start. Use: python
benchmarks/allreduce.py [--processes 2]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import zmq
from shadowsync.benchmarks.pairs import Figures, alternate, ratio, save, show_ratio, table
from shadowsync.benchmarks.raw_allreduce import RawAllReduce
from shadowsync.nodes.allreduce.sockets import PeerListener
from shadowsync.nodes.allreduce.transport import AllReduceTransport
from shadowsync.pipeline.codecs.formats import LinkCodecs, make_codec
from shadowsync.pipeline.wire.control.orders import MemberInfo
from shadowsync.sync_algos.none import NoSync

TIMEOUT_SECONDS = 60.0


ADDRESSES = {"tcp": "tcp://127.0.0.1:0", "ipc": "ipc://@shadowsync-allreduce-{pid}"}


@dataclass(frozen=True)
class Setup:
    """What is measured."""

    processes: int
    elements: int
    chunk_bytes: int
    codec: str
    transport: str


def serve(rank: int, setup: Setup, folder: str, pipe: Connection) -> None:
    """Measure in one process what is requested, until None comes."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=setup.processes
    )
    raw = RawAllReduce(rank, folder, setup.elements) if setup.processes == 2 else None
    asyncio.run(_serve(rank, setup, pipe, raw))
    dist.destroy_process_group()


async def _serve(rank: int, setup: Setup, pipe: Connection, raw: RawAllReduce | None) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = PeerListener(context, ADDRESSES[setup.transport].format(pid=os.getpid()))
    pipe.send(socket.endpoint)
    members = [
        MemberInfo(f"trainer-{at}", "trainer", at, f"token-{at}", endpoint)
        for at, endpoint in enumerate(pipe.recv())
    ]
    link = AllReduceTransport(
        socket,
        context,
        members,
        rank,
        f"token-{rank}",
        numel=setup.elements,
        seed=0,
        chunk_bytes=setup.chunk_bytes,
        timeout_seconds=TIMEOUT_SECONDS,
        eager=False,
        algorithm=NoSync(None),
        on_late=lambda generation, index: print(f"{index} is late in {generation}", flush=True),
        on_excluded=lambda: None,
        on_wanted=lambda: None,
        codecs=LinkCodecs(make_codec(setup.codec), make_codec(setup.codec)),
    )
    link.regroup(1, range(len(members)))
    values = torch.randn(setup.elements, generator=torch.Generator().manual_seed(rank))
    buffer = values.clone()
    while (told := await asyncio.to_thread(pipe.recv)) is not None:
        which, repeat = told
        # Sums of sums must not overflow; of what else gloo's buffer holds, its speed does not depend.
        buffer.copy_(values)
        started, cpu, sent = time.perf_counter(), time.process_time(), link.sent_bytes
        for _ in range(repeat):
            if which == "gloo":
                dist.all_reduce(buffer)
            elif which == "raw":
                assert raw is not None
                raw.run(values.numpy())
            else:
                group = await link.meet()
                await group.mean(values)
        seconds = (time.perf_counter() - started) / repeat
        pipe.send((seconds, (time.process_time() - cpu) / repeat, (link.sent_bytes - sent) / repeat))
    await link.close()
    context.term()


class Processes:
    """The measuring processes."""

    def __init__(self, setup: Setup, folder: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        pairs = [spawn.Pipe() for _ in range(setup.processes)]
        self.pipes = [ours for ours, _ in pairs]
        self.processes = [
            spawn.Process(target=serve, args=(rank, setup, folder, theirs))
            for rank, (_, theirs) in enumerate(pairs)
        ]
        for process in self.processes:
            process.start()
        endpoints = [pipe.recv() for pipe in self.pipes]
        for pipe in self.pipes:
            pipe.send(endpoints)

    def measure(self, which: str, repeat: int) -> Figures:
        """Return the figures of one all-reduce.

        They are milliseconds of one all-reduce, all-reduces a second, CPU and bytes of one process.
        """
        for pipe in self.pipes:
            pipe.send((which, repeat))
        found: list[Any] = [pipe.recv() for pipe in self.pipes]
        seconds = max(one[0] for one in found)
        figures = {"ms": seconds * 1e3, "per_second": 1 / seconds}
        figures["cpu_ms"] = sum(one[1] for one in found) / len(found) * 1e3
        if which == "ours":
            figures["sent_MB"] = sum(one[2] for one in found) / len(found) / 1e6
        return figures

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(30)


def main() -> None:
    """Measure and print; with --out also write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--megabytes", type=float, default=40.0)
    parser.add_argument("--chunk-bytes", type=int, default=1 << 20)
    parser.add_argument("--codec", default="float32")
    parser.add_argument("--transport", choices=sorted(ADDRESSES), default="tcp")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        elements = int(given.megabytes * 1e6 / 4)
        setup = Setup(given.processes, elements, given.chunk_bytes, given.codec, given.transport)
        processes = Processes(setup, folder)
        names = ("ours", "gloo", "raw") if given.processes == 2 else ("ours", "gloo")
        for which in names:
            processes.measure(which, 2)
        runs: dict[str, Callable[[], Figures]] = {
            which: partial(processes.measure, which, given.repeat) for which in names
        }
        results = alternate(runs, given.pairs)
        processes.close()
    rates = {which: [row["per_second"] for row in rows] for which, rows in results.items()}
    over = ratio(rates["ours"], rates["gloo"])
    what = (
        f"all-reduce of {given.megabytes:g} MB, {given.processes} processes, {given.codec}, {given.transport}"
    )
    print(f"\n{what}\n{table(results)}\n{show_ratio('ours over gloo, in all-reduces a second', over)}")
    if "raw" in rates:
        print(show_ratio("ours over plain TCP sockets", ratio(rates["ours"], rates["raw"])))
    if given.out:
        save(given.out, what, {"figures": results, "ours_over_gloo": over, "chunk_bytes": given.chunk_bytes})


if __name__ == "__main__":
    main()
