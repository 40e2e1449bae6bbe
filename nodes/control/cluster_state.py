"""What the coordinator of a job and a hub both know of their members, without I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...pipeline.config.job import Job
from ..runtime.members import SyncGroup
from .membership import Members
from .progress import DivergenceCurve, NodeRates

UNKNOWN_SENDERS: Final = "others"


class ClusterState:
    """The members, their synchronization, and what watchers see. Belongs to the server's loop.

    Args:
        clock: returns seconds that never decrease.

    Attributes:
        members: set by the subclass.
        group: the trainers that synchronize.
        rates, divergence: the last heartbeats, and the curve of the replicas' divergence.
        places: host and process by token.
        events: seconds since the start, member, and what happened.
        page: the address of the page; "" without one.
        refused_messages: malformed messages by member; those of unknown senders together.
        refused_connections: those that this process refused.
    """

    members: Members

    def __init__(self, job: Job, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.job = job
        self.folder = folder
        self.group = SyncGroup()
        self.rates = NodeRates()
        self.divergence = DivergenceCurve()
        self.places: dict[str, tuple[str, int]] = {}
        self.events: list[tuple[float, str, str]] = []
        self.page = ""
        self.refused_messages: dict[str, int] = {}
        self.refused_connections = 0
        self._clock = clock
        self._started_at = clock()

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return self._clock() - self._started_at

    def show_page(self, url: str) -> None:
        self.page = url

    def add_event(self, name: str, what: str, seconds: float | None = None) -> float:
        """Record what happened to a member, by default now; return its time."""
        seconds = self.seconds() if seconds is None else seconds
        self.events.append((seconds, name, what))
        return seconds

    def count_refused(self, token: str) -> None:
        """Count a refused message; unknown senders and those without a name count together."""
        member = self.members.find(token)
        # The name of one that died before the start is another member's.
        name = UNKNOWN_SENDERS if member is None or member.withdrawn else member.info.name
        self.refused_messages[name] = self.refused_messages.get(name, 0) + 1

    def count_refused_connection(self) -> None:
        self.refused_connections += 1
