"""Synchronization in the foreground: rounds after every k iterations, for which workers wait.

This is what ShadowSync is compared with (the paper's FR-EASGD-k, FR-MA-k, FR-BMUF-k). Both modes use the same
algorithm, link and wire; only who waits is different.

Rounds at a fixed rate with worker processes: what stands for the other side in each of the two.
"""

from __future__ import annotations

import asyncio
import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from ..replica.replica import TrainerContext
from .center_client import CenterClient
from .links import LinkConfig, ZmqPeers
from .rounds import RoundCounter, RoundGate


class RoundLog(Protocol):
    """Where a worker's own rounds are counted; see `RoundCounter`."""

    def completed(self, started_iterations: int, seconds: float, cpu_seconds: float) -> None:
        """A round is complete; it carried the replica as it was at `started_iterations`."""
        ...

    def incomplete(self) -> None:
        """A round ended without all of its slices."""
        ...


class WorkerRounds:
    """A worker's rounds as its trainer sees them, wherever they are run. Any thread may call."""

    def mark_lost(self, token: str) -> None:
        """A sync node is gone."""

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes that this worker itself sent and received so far."""
        return 0, 0

    def link_metrics(self) -> dict[str, int]:
        """See `CenterClient.metrics`, of this worker's own link."""
        return {}


class FixedRate(WorkerRounds, ABC):
    """What one worker does about rounds. Called by the worker's thread."""

    def before_step(self) -> None:
        """A batch is about to be trained."""

    @abstractmethod
    def after_iteration(self) -> None:
        """A batch was trained: waits for a round if it is time for one."""

    def nothing_to_train(self) -> None:
        """No batch has come yet."""

    def close(self) -> None:
        """Closes what it holds."""


class GatedRounds(FixedRate):
    """All workers of the trainer wait at a gate while the shadow thread runs the round (all-reduce)."""

    def __init__(self, index: int, gate: RoundGate) -> None:
        self._index = index
        self._gate = gate

    def before_step(self) -> None:
        """Waits for the end of a round that is under way."""
        self._gate.work(self._index)

    def after_iteration(self) -> None:
        """Every k-th time, waits at the gate."""
        self._gate.iterated(self._index)

    def nothing_to_train(self) -> None:
        """Rounds of the others need not wait for this worker, once this has lasted."""
        self._gate.starve(self._index)

    def arrive(self) -> None:
        """Waits at the gate now, for a worker that counts its iterations itself."""
        self._gate.arrive(self._index)


class CenterRounds(FixedRate):
    """The worker's own rounds with the center, on a loop and links of its own.

    Made by any thread, used and closed by the worker's only, but for `mark_lost`.
    """

    def __init__(self, index: int, shared: TrainerContext, link_config: LinkConfig, rounds: RoundLog) -> None:
        self._index = index
        self._shared = shared
        self._link_config = link_config
        self._rounds = rounds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._center: CenterClient | None = None
        self._lost: set[str] = set()

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes sent and received so far; any thread may read them."""
        return (self._center.sent_bytes, self._center.received_bytes) if self._center is not None else (0, 0)

    def link_metrics(self) -> dict[str, int]:
        """See `CenterClient.metrics`; any thread may read it."""
        return self._center.metrics() if self._center is not None else {}

    def after_iteration(self) -> None:
        """Runs a round if it is time for one, and waits for its end."""
        if self._shared.iterations[self._index] % self._shared.job.sync.every:
            return
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._round())

    def mark_lost(self, token: str) -> None:
        """A sync node is gone; any thread may call it."""
        self._lost.add(token)
        if self._loop is not None and self._center is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._center.mark_lost, token)

    def close(self) -> None:
        """Closes the sockets; on the worker's thread."""
        if self._loop is not None:
            if self._center is not None:
                self._loop.run_until_complete(self._center.close())
            self._loop.close()

    async def _round(self) -> None:
        if self._center is None:
            self._center = self._link_config.open_center(self._shared, f"fixed-{self._index}")
            assert self._center is not None
            for token in self._lost:
                self._center.mark_lost(token)
        started, cpu = time.monotonic(), time.thread_time()
        iterations = self._shared.total_iterations()
        links = ZmqPeers(self._link_config.index, self._center, None)
        if await self._link_config.algorithm.round(self._shared.replica, links):
            self._rounds.completed(iterations, time.monotonic() - started, time.thread_time() - cpu)
        else:
            self._rounds.incomplete()


Notify = Callable[[str, dict[str, Any]], None]


class RemoteGate(FixedRate):
    """In a worker process: the gate of the trainer, for algorithms with peers. Called by the worker's thread,
    but for what says otherwise.

    The worker keeps its own count and its own place, so that only a change of place is told, and only
    waiting takes an answer.
    """

    def __init__(self, every: int, notify: Notify) -> None:
        self._every = every
        self._notify = notify
        self._iterations = 0
        self._working = False
        self._passes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._opened = False

    def before_step(self) -> None:
        """Waits for the end of a round that is under way, if it may have begun without this worker."""
        if not self._working:
            self._notify("work", {})
            self._wait()
            self._working = True

    def after_iteration(self) -> None:
        """Every k-th time, waits at the gate."""
        self._iterations += 1
        if self._iterations % self._every == 0:
            self._notify("arrive", {})
            self._wait()

    def nothing_to_train(self) -> None:
        """Rounds of the others need not wait for this worker, once this has lasted."""
        if self._working:
            self._working = False
            self._notify("starve", {})

    def release(self) -> None:
        """The trainer has answered; any thread may call it."""
        self._passes.put(None)

    def open(self) -> None:
        """For good: nobody answers any more. Any thread may call it."""
        self._opened = True
        self._passes.put(None)

    def _wait(self) -> None:
        # Opened after this look, the gate has a pass for whoever waits.
        if not self._opened:
            self._passes.get()


class RemoteRoundLog:
    """In a worker process: counts the worker's own rounds with the center, at the trainer. Called by the
    worker's thread."""

    def __init__(self, shared: TrainerContext, notify: Notify) -> None:
        self._shared = shared
        self._notify = notify

    def completed(self, started_iterations: int, seconds: float, cpu_seconds: float) -> None:
        """See `RoundCounter.completed`."""
        figures = [started_iterations, seconds, cpu_seconds, self._shared.total_iterations()]
        self._notify("round", {"figures": figures})

    def incomplete(self) -> None:
        """See `RoundCounter.incomplete`."""
        self._notify("round", {"figures": None})


class RemoteRounds(WorkerRounds):
    """In the trainer: the rounds that a worker process runs with the center. Any thread may call, but for
    what says otherwise."""

    def __init__(self, rounds: RoundCounter) -> None:
        self._rounds = rounds
        self._lost: list[str] = []
        self._notify: Notify | None = None
        self._bytes = (0, 0)
        self._links: dict[str, int] = {}

    @property
    def bytes(self) -> tuple[int, int]:
        """As of the last pulse."""
        return self._bytes

    def link_metrics(self) -> dict[str, int]:
        """As of the last pulse."""
        return self._links

    def bind(self, notify: Notify) -> None:
        """How to tell the worker process; by the control thread, as `mark_lost`."""
        self._notify = notify
        for token in self._lost:
            notify("lose_sync", {"token": token})

    def mark_lost(self, token: str) -> None:
        """A sync node is gone; by the control thread."""
        self._lost.append(token)
        if self._notify is not None:
            self._notify("lose_sync", {"token": token})

    def update(self, body: dict[str, Any]) -> None:
        """What the worker process last counted."""
        self._bytes = (int(body["bytes"][0]), int(body["bytes"][1]))
        self._links = body["links"]

    def round(self, body: dict[str, Any]) -> None:
        """A round of the worker process ended; see `RemoteRoundLog`."""
        if body["figures"] is None:
            self._rounds.incomplete()
        else:
            self._rounds.completed(*body["figures"])
