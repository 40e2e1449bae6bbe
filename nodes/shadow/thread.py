"""The shadow thread, which synchronizes a replica in the background.

Source: Zheng et al., Algorithm 1.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import torch

from ...pipeline.wire.control.orders import GroupView, MemberInfo
from ...sync_algos.base import Algorithm
from ..replica.replica import ReplicaContext
from ..runtime.loops import LoopThread
from ..runtime.tracing import TRACER
from .rounds import DueSteps, RoundCounter, RoundGate
from .schedule import RETRY_SECONDS, RoundSchedule
from .zmq_peers import ZmqPeers

T = TypeVar("T")


class ShadowThread(LoopThread):
    """The shadow thread, with its own asyncio loop and sockets.

    In shadow mode it starts rounds when `RoundSchedule` says so, and training never waits for it. With a
    `gate` it runs the fixed-rate rounds that all workers wait for. Without either it acts only on request:
    the closing round, or a read of the center.

    Its coroutines run on its own loop; the control thread awaits them.

    Args:
        open_peers: opens the connections, on this thread's loop.
        gate: the workers' barrier, for fixed-rate algorithms with peers.
        due: by which the thread that trains tells that a round is due, if it does.
    """

    def __init__(
        self,
        context: ReplicaContext,
        algorithm: Algorithm,
        open_peers: Callable[[], ZmqPeers],
        rounds: RoundCounter,
        gate: RoundGate | None,
        failed: Callable[[BaseException], None],
        due: DueSteps | None = None,
    ) -> None:
        super().__init__("shadow", failed)
        self._context = context
        self._algorithm = algorithm
        self._open_peers = open_peers
        self._rounds = rounds
        self._gate = gate
        self._due = due
        if due is not None:
            due.wake = self.wake
        self._schedule = RoundSchedule(context.job.sync)
        self._opened: concurrent.futures.Future[ZmqPeers] = concurrent.futures.Future()
        # As that of the loop: the peers could not be handed over, and their sockets would stay open.
        self._opened.set_running_or_notify_cancel()
        self._running = False
        self._woken = asyncio.Event()
        # Held during a round.
        self._round_lock = asyncio.Lock()

    def body(self) -> None:
        """See `LoopThread.body`; torch computes on this thread alone."""
        torch.set_num_threads(1)
        super().body()

    async def main(self) -> None:
        """Run rounds until stopped, even in the middle of one."""
        peers = self._open_peers()
        self._opened.set_result(peers)
        try:
            while True:
                # A round that never waits, like that of a single trainer, must not block the loop.
                await asyncio.sleep(0)
                if not self._running:
                    await self._wait(None)
                elif self._gate is not None:
                    await self._at_gate(self._gate, peers)
                else:
                    await self._on_schedule(peers)
        finally:
            # No coroutine: a second cancellation would leave sockets open.
            peers.close()

    def begin(self) -> None:
        """Begin rounds, in shadow mode or with a gate."""
        self._running = self._context.job.sync.mode == "shadow" or self._gate is not None
        self.wake()

    def pause(self) -> None:
        """Start no further round.

        A current round with a center completes; one with trainers ends.
        """
        self._running = False
        if self._gate is not None:
            self._gate.open()
        self.call_with_peers(lambda peers: peers.transport.cancel() if peers.transport is not None else None)
        self.wake()

    async def run_with_peers(self, work: Callable[[ZmqPeers], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on this thread's loop, from the control thread's; see `run_coroutine`."""
        peers = await asyncio.wrap_future(self._opened)
        return await self.run_coroutine(lambda: work(peers))

    async def run_between_rounds(self, work: Callable[[ZmqPeers], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine as `run_with_peers` while no round is under way."""

        async def locked(peers: ZmqPeers) -> T:
            async with self._round_lock:
                return await work(peers)

        return await self.run_with_peers(locked)

    async def between_steps(self, work: Callable[[], T]) -> T:
        """Run `work` on this thread between steps of a round; return its result."""

        async def on_loop(peers: ZmqPeers) -> T:  # noqa: ARG001
            return work()

        return await self.run_with_peers(on_loop)

    async def closing_round(self) -> bool:
        """Run one round now, with nothing left to a later one; return whether it was complete."""

        async def exactly(peers: ZmqPeers) -> bool:
            peers.set_exact(is_exact=True)
            try:
                return await self._round(peers)
            finally:
                peers.set_exact(is_exact=False)

        return await self.run_with_peers(exactly)

    async def hold(self) -> None:
        """Return when no round is under way, and let none begin before `release`."""
        await self.run_with_peers(lambda _: self._round_lock.acquire())

    async def release(self) -> None:
        """Let rounds begin again, after `hold`."""
        await self.between_steps(self._round_lock.release)

    async def wait_idle(self) -> None:
        """Return when no round is under way."""
        await self.run_between_rounds(lambda _: asyncio.sleep(0))

    async def read_center(self) -> torch.Tensor:
        """Return the center, float32 [numel of the replica]; raises PeerLost."""
        return await self.run_with_peers(lambda peers: peers.center.read_all())

    async def regroup(self, view: GroupView) -> None:
        """Set a new generation of trainers; this ends the rounds of the last one."""

        async def on_loop(peers: ZmqPeers) -> None:
            if peers.transport is not None:
                peers.transport.regroup(view.generation, view.members)

        await self.run_with_peers(on_loop)

    async def connect(self, trainer: MemberInfo) -> None:
        """Connect to a trainer that joins the running job."""

        async def on_loop(peers: ZmqPeers) -> None:
            if peers.transport is not None:
                peers.transport.add(trainer)

        await self.run_with_peers(on_loop)

    def drop_trainer(self, token: str, *, left: bool) -> None:
        """Close the connection to another trainer, which died or `left`; any thread may call."""
        self.call_with_peers(lambda peers: peers.drop_trainer(token, left=left))

    def call_with_peers(self, work: Callable[[ZmqPeers], None]) -> None:
        """Run a function on this thread's loop, once there are peers.

        Any thread may call.
        """
        self._opened.add_done_callback(lambda opened: self.call(lambda: work(opened.result())))

    def wake(self) -> None:
        """Wake the thread to check for a due round.

        Any thread may call.
        """
        self.call(self._woken.set)

    def bytes(self) -> tuple[int, int]:
        """Bytes sent and received so far; any thread may read them."""
        peers = self._opened.result() if self._opened.done() else None
        return (peers.sent_bytes, peers.received_bytes) if peers is not None else (0, 0)

    def connection_metrics(self) -> dict[str, float]:
        """See `ZmqPeers.metrics`; any thread may call."""
        return self._opened.result().metrics() if self._opened.done() else {}

    async def _round(self, peers: ZmqPeers) -> bool:
        """Run one round now, on this thread's loop; return whether it was complete."""
        async with self._round_lock:
            started, cpu = time.monotonic(), time.thread_time()
            iterations = self._context.total_iterations()
            complete = await self._algorithm.round(self._context.replica, peers)
            if TRACER.on:
                TRACER.note("round", started, time.monotonic() - started)
            if complete:
                self._rounds.completed(iterations, time.monotonic() - started, time.thread_time() - cpu)
            else:
                self._rounds.incomplete()
            return complete

    async def _at_gate(self, gate: RoundGate, peers: ZmqPeers) -> None:
        """Wait until a round is due, run it, and release the workers."""
        is_awaited = peers.transport is not None and peers.transport.awaited
        if not gate.enter(awaited=is_awaited):
            # A worker becomes starved by time alone, without a notification.
            await self._wait(RETRY_SECONDS if is_awaited or gate.has_waiting_worker else None)
            return
        try:
            await self._round(peers)
        finally:
            gate.leave()

    async def _on_schedule(self, peers: ZmqPeers) -> None:
        """Run a round if due, else wait."""
        is_awaited = peers.transport is not None and peers.transport.awaited
        iterations = self._context.total_iterations()
        due = self._due
        seconds = self._schedule.wait_seconds(
            time.monotonic(), iterations, awaited=is_awaited, notified=due is not None
        )
        # A check is a timer and a sum of a few counters. With a gap they come as the missing
        # iterations need, at most 1 / SHORTEST_LOOK_SECONDS per second, and none while the duty cycle
        # allows no round. Workers only count. A loop of one thread can tell when
        # its steps are done, and then nobody looks.
        if seconds <= 0:
            await self._timed_round(peers)
        elif due is None or not self._is_reached(due, iterations):
            await self._wait(seconds)

    def _is_reached(self, due: DueSteps, iterations: int) -> bool:
        """Have the thread that trains tell when a round is due.

        Returns whether it is already. `iterations` are those by which it was not, or was too early.
        """
        due_iterations = self._schedule.due_iterations
        due.steps = due_iterations if iterations < due_iterations else due.NEVER
        # Steps that were done before the number was there.
        return iterations < due_iterations <= self._context.total_iterations()

    async def _timed_round(self, peers: ZmqPeers) -> None:
        """Run one round, and record its cost in the schedule."""
        started, cpu, moved = time.monotonic(), time.thread_time(), peers.sent_bytes + peers.received_bytes
        self._schedule.began(started, self._context.total_iterations())
        complete = await self._round(peers)
        self._schedule.ended(
            complete=complete,
            seconds=time.monotonic() - started,
            cpu_seconds=time.thread_time() - cpu,
            moved_bytes=peers.sent_bytes + peers.received_bytes - moved,
        )

    async def _wait(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
        self._woken.clear()
