"""Synchronization in the foreground: rounds after every k iterations, for which workers wait.

This is what ShadowSync is compared with (the paper's FR-EASGD-k, FR-MA-k, FR-BMUF-k). Both modes use the same
algorithm, link and wire; only who waits is different.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import Protocol

from ..replica.replica import Shared
from .center_client import CenterLink
from .links import Links, LinkSettings
from .round_gate import RoundGate


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

    def lose(self, token: str) -> None:
        """A sync node is gone."""

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes that this worker itself sent and received so far."""
        return 0, 0

    def link_metrics(self) -> dict[str, int]:
        """See `CenterLink.metrics`, of this worker's own link."""
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


class OwnRounds(FixedRate):
    """The worker's own rounds with the center, on a loop and links of its own.

    Made by any thread, used and closed by the worker's only, but for `lose`.
    """

    def __init__(self, index: int, shared: Shared, settings: LinkSettings, rounds: RoundLog) -> None:
        self._index = index
        self._shared = shared
        self._settings = settings
        self._rounds = rounds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._center: CenterLink | None = None
        self._lost: set[str] = set()

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes sent and received so far; any thread may read them."""
        return (self._center.sent_bytes, self._center.received_bytes) if self._center is not None else (0, 0)

    def link_metrics(self) -> dict[str, int]:
        """See `CenterLink.metrics`; any thread may read it."""
        return self._center.metrics() if self._center is not None else {}

    def after_iteration(self) -> None:
        """Runs a round if it is time for one, and waits for its end."""
        if self._shared.iterations[self._index] % self._shared.job.sync.every:
            return
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._round())

    def lose(self, token: str) -> None:
        """A sync node is gone; any thread may call it."""
        self._lost.add(token)
        if self._loop is not None and self._center is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._center.lose, token)

    def close(self) -> None:
        """Closes the sockets; on the worker's thread."""
        if self._loop is not None:
            if self._center is not None:
                self._loop.run_until_complete(self._center.close())
            self._loop.close()

    async def _round(self) -> None:
        if self._center is None:
            self._center = self._settings.open_center(self._shared, f"fixed-{self._index}")
            assert self._center is not None
            for token in self._lost:
                self._center.lose(token)
        started, cpu = time.monotonic(), time.thread_time()
        iterations = self._shared.total_iterations()
        links = Links(self._settings.index, self._center, None)
        if await self._settings.algorithm.round(self._shared.replica, links):
            self._rounds.completed(iterations, time.monotonic() - started, time.thread_time() - cpu)
        else:
            self._rounds.incomplete()
