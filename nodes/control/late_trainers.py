"""Trainers that are late for long while a job trains: a state machine without I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ...pipeline.report.lateness import LONG_SECONDS, Lateness, late_trainers, lateness_of, latest_of


class LateTrainers:
    """Tells once of each trainer that was late for long, by what sync nodes or other trainers say.

    One thread calls; times are seconds by any clock that never goes back.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        self._before: dict[str, dict[str, Lateness]] = {}
        self._now: dict[str, dict[str, Lateness]] = {}
        self._told: set[str] = set()

    def heard(
        self, node: str, counts: Mapping[str, Any], living: Collection[str], now: float
    ) -> dict[str, str]:
        """Take a node's counts; return what to say of which trainer, at the end of a window.

        Only of `living` trainers, and of none if there is one alone.
        """
        if not (trainers := lateness_of(counts)):
            return {}
        self._now[node] = trainers
        if self._began is None:
            self._began, self._before = now, dict(self._now)
        seconds = now - self._began
        if seconds < LONG_SECONDS:
            # Of one that comes during the window it counts from here on.
            self._before.setdefault(node, trainers)
            return {}
        since = {
            name: {to: lateness.since(self._before.get(name, {}).get(to)) for to, lateness in seen.items()}
            for name, seen in self._now.items()
        }
        self._began, self._before = now, dict(self._now)
        latest = {name: lateness for name, lateness in latest_of(since).items() if name in living}
        late = late_trainers(latest, seconds)
        said = {name: lateness.words(seconds) for name, lateness in late.items() if name not in self._told}
        self._told |= said.keys()
        return said
