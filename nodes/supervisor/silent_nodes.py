"""Nodes that the coordinator declared dead while their processes live."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from ...pipeline.config.sections import RunSection
from .launcher import RunningNode


class SilentNodes:
    """Since when each is declared dead, and when it is killed.

    Such a node is stopped or cut off. Its rows are alive, so it has another node timeout until another one
    takes its place, but no more than half the time that the job waits for one.
    """

    def __init__(self, run: RunSection) -> None:
        self._patience_seconds = min(run.node_timeout_seconds, run.rejoin_seconds / 2)
        self._dead_since: dict[str, float] = {}

    def end(self, dead: Iterable[str], nodes: Iterable[RunningNode], now: float) -> None:
        """Kill the nodes that have been declared dead for too long; `dead` has the tokens of all that are.

        `now` is in seconds of a clock that never goes back.
        """
        self._dead_since = {token: self._dead_since.get(token, now) for token in dead}
        for node in nodes:
            if now - self._dead_since.get(node.token, now) > self._patience_seconds:
                node.signal(signal.SIGKILL)
