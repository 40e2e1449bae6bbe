"""A link that its transfers share, each by its weight, on simpy's clock."""

from __future__ import annotations

import heapq
import itertools

import simpy


class SharedLink:
    """A link of a given bandwidth, in one direction.

    n transfers at once have the bandwidth in proportion to their weights (generalized processor sharing,
    Parekh and Gallager, IEEE/ACM Trans. Networking 1(3), 1993). The virtual time grows by bandwidth / sum of
    weights; a transfer ends when it has grown by size / weight. So a transfer takes O(log n) work, however
    many others come and go.

    Attributes:
        moved_bytes: bytes moved so far, by `advance`.
        busy_seconds: time in which there was a transfer, by `advance`.
    """

    def __init__(self, env: simpy.Environment, bytes_per_second: float) -> None:
        self._env = env
        self._rate = bytes_per_second
        self._virtual = 0.0
        self._weight = 0.0
        self._advanced_at = 0.0
        self._waiting: list[tuple[float, int, float, simpy.Event]] = []
        self._numbers = itertools.count()
        self._version = 0
        self.moved_bytes = 0.0
        self.busy_seconds = 0.0

    def transfer(self, size_bytes: float, weight: float = 1.0) -> simpy.Event:
        """Begin a transfer; the event happens when it is done."""
        self.advance()
        done = self._env.event()
        entry = (self._virtual + size_bytes / weight, next(self._numbers), weight, done)
        heapq.heappush(self._waiting, entry)
        self._weight += weight
        self._wake_at_next()
        return done

    def advance(self) -> None:
        """Bring the counts up to the present moment."""
        passed = self._env.now - self._advanced_at
        self._advanced_at = self._env.now
        if self._waiting:
            self._virtual += passed * self._rate / self._weight
            self.moved_bytes += passed * self._rate
            self.busy_seconds += passed

    def _wake_at_next(self) -> None:
        self._version += 1
        if not self._waiting:
            # Sums of weights are rounded; an idle link has none.
            self._weight = 0.0
            return
        version = self._version
        left = max(0.0, self._waiting[0][0] - self._virtual) * self._weight / self._rate
        self._env.timeout(left).callbacks.append(lambda _: self._end_due(version))

    def _end_due(self, version: int) -> None:
        if version != self._version:
            return
        self.advance()
        tag = self._waiting[0][0]
        self._virtual = max(self._virtual, tag)
        while self._waiting and self._waiting[0][0] <= tag:
            _, _, weight, done = heapq.heappop(self._waiting)
            self._weight -= weight
            done.succeed()
        self._wake_at_next()
