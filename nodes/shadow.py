"""The shadow thread: synchronizes a trainer's replica in the background (Zheng et al., Algorithm 1)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import zmq

from ..sync_algos.base import Algorithm, Center
from .center_link import CenterLink
from .replica import Shared
from .role import MemberInfo
from .rounds import RoundCounter
from .service import Service

IDLE_SECONDS = 0.001

T = TypeVar("T")


@dataclass(frozen=True)
class LinkedPeers:
    """The peers over ZeroMQ; implements `Peers` of `sync_algos`."""

    center: Center


@dataclass(frozen=True)
class LinkSettings:
    """What a thread needs to open its own link to the sync nodes."""

    context: zmq.Context[zmq.Socket[bytes]]
    members: Sequence[MemberInfo]
    token: str

    def open(self, shared: Shared, thread: str) -> CenterLink:
        """A link for the running loop of the calling thread."""
        sync = shared.job.sync
        return CenterLink(
            self.context,
            self.members,
            shared.replica.numel,
            f"{self.token}/{thread}",
            chunk_bytes=sync.chunk_bytes,
            timeout_seconds=sync.timeout_seconds,
        )


class Shadow(Service):
    """One thread with its own asyncio loop and its own sockets to the sync nodes.

    In shadow mode it starts a round as often as its duty cycle allows: after a round that cost
    `t = max(CPU seconds of this thread, bytes / link rate)` the next one starts `max(t / duty, the answer's
    time)` after it began. At a fixed rate it only does what it is asked: the closing round, reading the
    center. Training never waits for it.
    """

    def __init__(
        self,
        shared: Shared,
        algorithm: Algorithm,
        links: LinkSettings,
        rounds: RoundCounter,
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__("shadow", failed)
        self._shared = shared
        self._algorithm = algorithm
        self._links = links
        self._rounds = rounds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened: concurrent.futures.Future[CenterLink] = concurrent.futures.Future()
        self._running = False
        self._wake: asyncio.Event | None = None
        self._one_round = asyncio.Lock()

    def body(self) -> None:
        """Runs the loop until told to stop."""
        torch.set_num_threads(1)
        asyncio.run(self._main())

    def stop(self) -> None:
        """Ends the thread, also in the middle of a round."""
        super().stop()
        self._poke()

    def begin(self) -> None:
        """From now on rounds follow each other, in shadow mode."""
        self._running = self._shared.job.sync.mode == "shadow"
        self._poke()

    def pause(self) -> None:
        """No further round is started; one under way goes on."""
        self._running = False
        self._poke()

    async def call(self, work: Callable[[CenterLink], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine on this thread's loop, from the control thread's."""
        link = await asyncio.wrap_future(self._opened)
        assert self._loop is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(link), self._loop))

    def lose(self, token: str) -> None:
        """A sync node is gone; any thread may call it."""
        if self._loop is not None and self._opened.done():
            self._loop.call_soon_threadsafe(self._opened.result().lose, token)

    def bytes(self) -> tuple[int, int]:
        """Bytes sent and received so far; any thread may read them."""
        link = self._opened.result() if self._opened.done() else None
        return (link.sent_bytes, link.received_bytes) if link is not None else (0, 0)

    async def round(self) -> bool:
        """One round now, on this thread's loop."""
        async with self._one_round:
            return await self._round(self._opened.result())

    async def quiet(self) -> None:
        """Returns when no round is under way."""
        async with self._one_round:
            return

    async def _round(self, link: CenterLink) -> bool:
        started, cpu = time.monotonic(), time.thread_time()
        iterations = self._shared.total_iterations()
        complete = await self._algorithm.round(self._shared.replica, LinkedPeers(link))
        if complete:
            self._rounds.completed(iterations, time.monotonic() - started, time.thread_time() - cpu)
        else:
            self._rounds.incomplete()
        return complete

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        link = self._links.open(self._shared, "shadow")
        self._opened.set_result(link)
        try:
            while not self.stopping:
                if not self._running:
                    await self._wait(None)
                    continue
                round_task = asyncio.ensure_future(self._timed_round(link))
                await self._until_stopped(round_task)
                if round_task.done() and not round_task.cancelled():
                    await self._wait(round_task.result())
        finally:
            await link.close()

    async def _timed_round(self, link: CenterLink) -> float:
        """One round; gives how long to wait after it."""
        sync = self._shared.job.sync
        started, cpu, sent = time.monotonic(), time.thread_time(), link.sent_bytes + link.received_bytes
        complete = await self.round()
        elapsed = time.monotonic() - started
        cost = time.thread_time() - cpu
        if sync.link_bytes_per_second is not None:
            moved = link.sent_bytes + link.received_bytes - sent
            cost = max(cost, moved / sync.link_bytes_per_second)
        pause = max(cost / sync.duty, elapsed) - elapsed
        # A node that is known to be gone fails rounds at once; they must not become a busy loop.
        return pause if complete else max(pause, 0.05)

    async def _until_stopped(self, task: asyncio.Task[Any]) -> None:
        assert self._wake is not None
        while not task.done():
            self._wake.clear()
            waiter = asyncio.ensure_future(self._wake.wait())
            await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
            waiter.cancel()
            if self.stopping and not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _wait(self, seconds: float | None) -> None:
        assert self._wake is not None
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
            self._wake.clear()
        except TimeoutError:
            return

    def _poke(self) -> None:
        if self._loop is not None and self._wake is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)
