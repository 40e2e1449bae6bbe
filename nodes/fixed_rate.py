"""Synchronization in the foreground: a worker's own round after every k of its iterations.

This is what ShadowSync is compared with (the paper's FR-EASGD-k). Both modes use the same algorithm, link
and wire; here the worker waits for the round.
"""

from __future__ import annotations

import asyncio
import time

from ..sync_algos.base import Algorithm
from .center_link import CenterLink
from .replica import Shared
from .rounds import RoundCounter
from .shadow import LinkedPeers, LinkSettings


class FixedRate:
    """One worker's rounds. Made by any thread, used and closed by the worker's only, but for `lose`."""

    def __init__(
        self, index: int, shared: Shared, algorithm: Algorithm, links: LinkSettings, rounds: RoundCounter
    ) -> None:
        self._index = index
        self._shared = shared
        self._algorithm = algorithm
        self._links = links
        self._rounds = rounds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: CenterLink | None = None
        self._lost: set[str] = set()

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes sent and received so far; any thread may read them."""
        return (self._link.sent_bytes, self._link.received_bytes) if self._link is not None else (0, 0)

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
        if self._loop is not None and self._link is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._link.lose, token)

    def close(self) -> None:
        """Closes the sockets; on the worker's thread."""
        if self._loop is not None:
            if self._link is not None:
                self._loop.run_until_complete(self._link.close())
            self._loop.close()

    async def _round(self) -> None:
        if self._link is None:
            self._link = self._links.open(self._shared, f"fixed-{self._index}")
            for token in self._lost:
                self._link.lose(token)
        started, cpu = time.monotonic(), time.thread_time()
        iterations = self._shared.total_iterations()
        complete = await self._algorithm.round(self._shared.replica, LinkedPeers(self._link))
        if complete:
            self._rounds.completed(iterations, time.monotonic() - started, time.thread_time() - cpu)
        else:
            self._rounds.incomplete()
