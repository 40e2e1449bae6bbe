"""Fixed-rate synchronization: rounds after every k iterations, for which workers wait.

This is the baseline of ShadowSync (the paper's FR-EASGD-k, FR-MA-k, FR-BMUF-k). Both modes use the same
algorithms, clients and messages; only the waiting differs.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable
from functools import partial

from ...pipeline.wire.control.orders import MemberInfo
from ...pipeline.wire.tasks import post
from ..replica.replica import ReplicaContext
from ..runtime.main_loop import PauseAwareLoop
from .center_client import CenterClient
from .rounds import RoundCounter, RoundGate
from .zmq_peers import ConnectionConfig, ZmqPeers


class FixedRate:
    """One worker's part in fixed-rate rounds.

    The worker's thread calls it, and any thread what says so.
    """

    def before_step(self) -> None:
        """Prepare for training a batch."""

    def after_iteration(self) -> None:
        """Count a trained batch, and wait for a round if one is due."""
        raise NotImplementedError

    def nothing_to_train(self) -> None:
        """Note that the worker has no batch."""

    def mark_lost(self, token: str) -> None:
        """Mark a sync node as lost; any thread may call."""

    def replace(self, number: int, member: MemberInfo) -> None:
        """Use another sync node for the slice of this number from the next round on; any thread."""

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes that this worker's own client sent and received so far; any thread may read them."""
        return 0, 0

    def connection_metrics(self) -> dict[str, float]:
        """See `CenterClient.metrics`, of this worker's own client; any thread may call."""
        return {}

    def stop(self) -> None:
        """Let the worker wait for no round any more, since its node ends; any thread may call."""

    def close(self) -> None:
        """Close the sockets, if any."""


class GatedRounds(FixedRate):
    """Rounds of the shadow thread while all workers wait at a gate (all-reduce)."""

    def __init__(self, index: int, gate: RoundGate) -> None:
        self._index = index
        self._gate = gate

    def before_step(self) -> None:
        """Wait for the end of the current round."""
        self._gate.work(self._index)

    def after_iteration(self) -> None:
        """Wait at the gate, every k-th time."""
        self._gate.iterated(self._index)

    def nothing_to_train(self) -> None:
        """Note that the worker has no batch.

        If this lasts, rounds do not wait for it.
        """
        self._gate.starve(self._index)


class CenterRounds(FixedRate):
    """A worker's own rounds with the center, with its own loop and client.

    Any thread may create it and call `mark_lost`, `replace` and `stop`; only the worker's thread may use and
    close it.
    """

    def __init__(
        self, index: int, context: ReplicaContext, connection_config: ConnectionConfig, rounds: RoundCounter
    ) -> None:
        self._index = index
        self._context = context
        self._connection_config = connection_config
        self._rounds = rounds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._center: CenterClient | None = None
        self._is_stopping = False
        # Events of sync nodes in order; each round first handles the new ones.
        self._happened: queue.SimpleQueue[str | tuple[int, MemberInfo]] = queue.SimpleQueue()

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes sent and received so far; any thread may read them."""
        return (self._center.sent_bytes, self._center.received_bytes) if self._center is not None else (0, 0)

    def connection_metrics(self) -> dict[str, float]:
        """See `CenterClient.metrics`; any thread may read it."""
        return {**self._center.metrics()} if self._center is not None else {}

    def after_iteration(self) -> None:
        """Run a round if one is due, and wait for its end."""
        if self._context.iterations[self._index] % self._context.job.sync.every:
            return
        if self._loop is None:
            self._loop = PauseAwareLoop()
        self._loop.run_until_complete(self._round())

    def mark_lost(self, token: str) -> None:
        """Mark a sync node as lost; any thread may call."""
        self._happened.put(token)
        self._on_loop(lambda center: center.mark_lost(token))

    def replace(self, number: int, member: MemberInfo) -> None:
        """Replace a slice's sync node from the next round on; any thread."""
        self._happened.put((number, member))

    def stop(self) -> None:
        """See `FixedRate.stop`: a round that waits ends as incomplete."""
        self._is_stopping = True
        self._on_loop(CenterClient.mark_all_lost)

    def close(self) -> None:
        """Close the sockets, on the worker's thread."""
        if self._loop is None:
            return
        try:
            if self._center is not None:
                self._center.close()
        finally:
            self._loop.close()

    def _on_loop(self, work: Callable[[CenterClient], None]) -> None:
        """Have `work` done on the loop of the rounds, if there was one; any thread may call."""
        if self._loop is not None and self._center is not None:
            post(self._loop, partial(work, self._center))

    async def _round(self) -> None:
        if self._center is None:
            self._center = self._connection_config.open_center(self._context, f"fixed-{self._index}")
            assert self._center is not None
        if self._is_stopping:
            self._center.mark_all_lost()
        while not self._happened.empty():
            happened = self._happened.get()
            if isinstance(happened, str):
                self._center.mark_lost(happened)
            else:
                await self._center.replace(*happened)
        started, cpu = time.monotonic(), time.thread_time()
        iterations = self._context.total_iterations()
        peers = ZmqPeers(self._connection_config.index, self._center, None)
        if await self._connection_config.algorithm.round(self._context.replica, peers):
            self._rounds.completed(iterations, time.monotonic() - started, time.thread_time() - cpu)
        else:
            self._rounds.incomplete()
