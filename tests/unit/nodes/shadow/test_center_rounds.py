"""A worker's own rounds with the center: they end with their node, and leave nothing on their loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import zmq
from shadowsync.nodes.replica.buffer import FlatReplica
from shadowsync.nodes.shadow.fixed_rate import CenterRounds
from shadowsync.nodes.shadow.rounds import RoundCounter
from shadowsync.nodes.shadow.zmq_peers import ConnectionConfig
from shadowsync.pipeline.codecs.formats import LinkCodecs
from shadowsync.pipeline.config.sections import SyncSection
from shadowsync.pipeline.wire.control.orders import MemberInfo
from shadowsync.sync_algos.catalog.registry import make_algorithm

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]
# Far beyond what a test may take.
TIMEOUT_SECONDS = 600.0
SOON_SECONDS = 60.0


@pytest.fixture
def silent(context: Context) -> Iterator[list[Socket]]:
    """Two sync nodes that never answer."""
    sockets = [context.socket(zmq.ROUTER) for _ in range(2)]
    for socket in sockets:
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind("tcp://127.0.0.1:*")
    yield sockets
    for socket in sockets:
        socket.close()


def rounds_with(context: Context, centers: list[Socket], algorithm: Any = None) -> CenterRounds:
    """The rounds of the one worker of a trainer of four elements, due after each iteration."""
    job = SimpleNamespace(
        sync=SyncSection(algorithm="easgd", mode="fixed", every=1, timeout_seconds=TIMEOUT_SECONDS),
        codecs=SimpleNamespace(center=LinkCodecs),
    )
    replica = FlatReplica(torch.zeros(4), np.zeros(1, np.int64))
    shared = SimpleNamespace(
        job=job, replica=replica, total_iterations=lambda: 0, iterations=np.ones(1, np.int64)
    )
    members = [
        MemberInfo(f"sync-{index}", "sync", index, f"t{index}", socket.getsockopt_string(zmq.LAST_ENDPOINT))
        for index, socket in enumerate(centers)
    ]
    config = ConnectionConfig(context, algorithm or make_algorithm("easgd", {}), members, [], 0, "trainer")
    return CenterRounds(0, cast(Any, shared), config, RoundCounter(lambda: 0))


def test_a_round_that_waits_ends_with_its_node(context: Context, silent: list[Socket]) -> None:
    rounds = rounds_with(context, silent)

    def work() -> None:
        rounds.after_iteration()
        rounds.close()

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    for socket in silent:
        assert socket.poll(int(SOON_SECONDS * 1000)), "the round has begun"
    assert worker.is_alive(), "the control: it waits"
    rounds.stop()
    worker.join(SOON_SECONDS)
    assert not worker.is_alive()


def test_none_begins_after_the_end(context: Context, silent: list[Socket]) -> None:
    rounds = rounds_with(context, silent)
    rounds.stop()
    began = time.monotonic()
    rounds.after_iteration()
    rounds.close()
    assert time.monotonic() - began < SOON_SECONDS
    assert not any(socket.poll(0) for socket in silent)


def test_one_that_fails_leaves_nothing_on_its_loop(context: Context, silent: list[Socket]) -> None:
    ended = []

    class Failing:
        needs_center, recenters, counts_once = True, True, False

        async def round(self, *_: Any) -> bool:
            await asyncio.gather(self.fails(), self.waits())
            return True

        async def fails(self) -> None:
            await asyncio.sleep(0)
            raise zmq.ContextTerminated

        async def waits(self) -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                # As a request does with the task that sends for it.
                await asyncio.sleep(0)
                ended.append(True)

    rounds = rounds_with(context, silent, Failing())
    with pytest.raises(zmq.ContextTerminated):
        rounds.after_iteration()
    rounds.close()
    assert ended == [True]
