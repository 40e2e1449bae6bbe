"""How fast the counts of heartbeats grow."""

from __future__ import annotations

from collections import deque
from typing import Any

WINDOW_SECONDS = 5.0
STALE_SECONDS = 3.0


class Rates:
    """The heartbeats of the last WINDOW_SECONDS by node. Owned by the coordinator's loop.

    A node that was not heard of for STALE_SECONDS has no rates.
    """

    def __init__(self) -> None:
        self._beats: dict[str, deque[tuple[float, dict[str, Any]]]] = {}

    def beat(self, node: str, seconds: float, metrics: dict[str, Any]) -> None:
        """A heartbeat came, so many seconds after the start. `metrics` is kept, not copied."""
        beats = self._beats.setdefault(node, deque())
        beats.append((seconds, metrics))
        while seconds - beats[0][0] > WINDOW_SECONDS and len(beats) > 2:
            beats.popleft()

    def of(self, node: str, key: str, now: float) -> float | None:
        """The growth of one count in its unit per second; None where it is not known."""
        beats = self._beats.get(node)
        if not beats or len(beats) < 2 or now - beats[-1][0] > STALE_SECONDS:
            return None
        # A count is missing until the part that counts it has started.
        known = [(seconds, metrics[key]) for seconds, metrics in beats if key in metrics]
        if len(known) < 2 or known[-1][0] <= known[0][0]:
            return None
        grown: float = known[-1][1] - known[0][1]
        return max(0.0, grown) / (known[-1][0] - known[0][0])

    def total(self, nodes: list[str], key: str, now: float) -> float | None:
        """The sum over nodes; None if no node has it."""
        found = [rate for node in nodes if (rate := self.of(node, key, now)) is not None]
        return sum(found) if found else None
