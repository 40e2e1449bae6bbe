"""An exchange with a center against a raw TCP echo.

    python benchmarks/center_exchange.py [--rounds 10] [--megabytes 40] [--codec float32] [--out FILE.json]

The exchange has 40 MB, goes both ways and includes its arithmetic; the echo does the same.

Ours: a `CenterClient` here and a `CenterService` in its own process, over loopback TCP, with EASGD's rule
on the node and `w -= (1 - a) d` here. Raw: two processes over one plain TCP socket; `recv_into` a buffer that
is there already, the same arithmetic on both sides with torch on one thread, `sendall`. A figure is the mean
over the exchanges of one run of `--exchanges`, after two to warm up; runs of both alternate in one process.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import time
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zmq
from shadowsync.benchmarks.pairs import Figures, alternate, ratio, save, show_ratio, table
from shadowsync.nodes.shadow.center_client import CenterClient
from shadowsync.nodes.sync.center import CenterState
from shadowsync.nodes.sync.role import CenterService
from shadowsync.pipeline.codecs.formats import LinkCodecs, make_codec
from shadowsync.pipeline.wire.control.orders import MemberInfo
from shadowsync.pipeline.wire.sockets import Listener
from shadowsync.sync_algos.easgd import EASGD, ElasticOptions

ALPHA = 0.5
CHUNK_BYTES = 1 << 20
RULE = EASGD(ElasticOptions(ALPHA)).center_rule


def sync_node(pipe: Connection, codec: str) -> None:
    """Serve, as the node's process, until the pipe reports the end."""
    failed: list[BaseException] = []
    listener = Listener(zmq.Context(), "tcp://127.0.0.1:0")
    codecs = LinkCodecs(make_codec(codec), make_codec(codec))
    service = CenterService(listener, CenterState(RULE, codecs), failed.append)
    service.start()
    pipe.send(listener.endpoint)
    pipe.recv()
    service.stop()
    service.join(5.0)
    assert not failed, failed


def raw_node(pipe: Connection, elements: int) -> None:
    """The echo's process: the center in a tensor, one client."""
    torch.set_num_threads(1)
    center = torch.zeros(elements)
    staged = np.empty(elements, dtype=np.float32)
    answer = torch.empty(elements)
    server = socket.create_server(("127.0.0.1", 0))
    pipe.send(server.getsockname()[1])
    connection, _ = server.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, server:
        while receive_into(connection, staged):
            torch.sub(torch.from_numpy(staged), center, out=answer)
            answer.mul_(ALPHA)
            center.add_(answer)
            connection.sendall(answer.numpy().data.cast("B"))


def receive_into(connection: socket.socket, target: np.ndarray[Any, np.dtype[np.float32]]) -> bool:
    """Fill the array; return whether there was anything left to receive."""
    view = target.data.cast("B")
    at = 0
    while at < len(view):
        got = connection.recv_into(view[at:])
        if not got:
            return False
        at += got
    return True


class Ours:
    """The link, on a loop that lives as long as it."""

    def __init__(self, endpoint: str, elements: int, codec: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._replica = torch.randn(elements, generator=torch.Generator().manual_seed(1))
        self._elements = elements
        self.link = self._run(self._open(endpoint, codec))

    async def _open(self, endpoint: str, codec: str) -> CenterClient:
        link = CenterClient(
            zmq.Context(),
            [MemberInfo("sync-0", "sync", 0, "token", endpoint)],
            self._elements,
            "bench/shadow",
            chunk_bytes=CHUNK_BYTES,
            timeout_seconds=60.0,
            codecs=LinkCodecs(make_codec(codec), make_codec(codec)),
        )
        await link.seed(torch.zeros(self._elements))
        return link

    def exchange(self) -> None:
        """Exchange as EASGD does it, but for the snapshot."""
        part = self.link.slices[0]
        delta = self._run(self.link.exchange(part, self._replica))
        self._replica.add_(delta, alpha=ALPHA - 1)

    def close(self) -> None:
        """Close the socket and the loop."""
        self._run(self.link.close())
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)


class Raw:
    """The echo's client."""

    def __init__(self, port: int, elements: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._replica = torch.randn(elements, generator=torch.Generator().manual_seed(1))
        self._delta = np.empty(elements, dtype=np.float32)

    def exchange(self) -> None:
        """Send all of it there, then receive all of it back."""
        self._socket.sendall(self._replica.numpy().data.cast("B"))
        assert receive_into(self._socket, self._delta)
        self._replica.add_(torch.from_numpy(self._delta), alpha=ALPHA - 1)

    def close(self) -> None:
        """Close the socket, which ends the node too."""
        self._socket.close()


def timed(exchange: Callable[[], None], times: int, payload: int) -> Figures:
    """Time one exchange.

    Returns its seconds, CPU seconds of this process, and MB/s of values both ways.
    """
    for _ in range(2):
        exchange()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        exchange()
    seconds = (time.perf_counter() - wall) / times
    return {
        "ms": seconds * 1e3,
        "cpu_ms_here": (time.process_time() - cpu) / times * 1e3,
        "mb_s": 2 * payload / seconds / 1e6,
    }


def main() -> None:
    """Start both nodes, alternate, print and write the ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--exchanges", type=int, default=5)
    parser.add_argument("--megabytes", type=float, default=40.0)
    parser.add_argument("--codec", default="float32")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    elements = int(options.megabytes * 1e6) // 4
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    node = spawn.Process(target=sync_node, args=(there, options.codec))
    raw_here, raw_there = spawn.Pipe()
    raw = spawn.Process(target=raw_node, args=(raw_there, elements))
    node.start()
    raw.start()
    ours, theirs = Ours(here.recv(), elements, options.codec), Raw(raw_here.recv(), elements)
    results = alternate(
        {
            "center link": lambda: timed(ours.exchange, options.exchanges, 4 * elements),
            "raw TCP echo": lambda: timed(theirs.exchange, options.exchanges, 4 * elements),
        },
        options.rounds,
    )
    traffic = ours.link.traffic
    ours.close()
    theirs.close()
    here.send("over")
    node.join()
    raw.join()
    found = ratio(
        [row["mb_s"] for row in results["center link"]], [row["mb_s"] for row in results["raw TCP echo"]]
    )
    print(table(results))
    print(show_ratio(f"center link ({options.codec}) over raw TCP", found))
    up, down = traffic.up_float32 / traffic.up, traffic.down_float32 / traffic.down
    print(f"{up:.2f} and {down:.2f} times fewer bytes than float32, up and down, headers included")
    if options.out is not None:
        settings = {"codec": options.codec, "elements": elements, "exchanges": options.exchanges}
        fewer = {"up": up, "down": down}
        note = {"runs": results, "ratio": found, "settings": settings, "times_fewer_bytes": fewer}
        save(options.out, (__doc__ or "").splitlines()[0], note)


if __name__ == "__main__":
    main()
