"""Rounds at a fixed rate with worker processes: what stands for the other side in each of the two."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

from ..replica.replica import Shared
from .fixed_rate import FixedRate, WorkerRounds
from .rounds import RoundCounter

Tell = Callable[[str, dict[str, Any]], None]


class DistantGate(FixedRate):
    """In a worker process: the gate of the trainer, for algorithms with peers. Called by the worker's thread,
    but for what says otherwise.

    The worker keeps its own count and its own place, so that only a change of place is told, and only
    waiting takes an answer.
    """

    def __init__(self, every: int, tell: Tell) -> None:
        self._every = every
        self._tell = tell
        self._iterations = 0
        self._working = False
        self._passes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._opened = False

    def before_step(self) -> None:
        """Waits for the end of a round that is under way, if it may have begun without this worker."""
        if not self._working:
            self._tell("work", {})
            self._wait()
            self._working = True

    def after_iteration(self) -> None:
        """Every k-th time, waits at the gate."""
        self._iterations += 1
        if self._iterations % self._every == 0:
            self._tell("arrive", {})
            self._wait()

    def nothing_to_train(self) -> None:
        """Rounds of the others need not wait for this worker, once this has lasted."""
        if self._working:
            self._working = False
            self._tell("starve", {})

    def let_pass(self) -> None:
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


class RoundNotes:
    """In a worker process: counts the worker's own rounds with the center, at the trainer. Called by the
    worker's thread."""

    def __init__(self, shared: Shared, tell: Tell) -> None:
        self._shared = shared
        self._tell = tell

    def completed(self, started_iterations: int, seconds: float, cpu_seconds: float) -> None:
        """See `RoundCounter.completed`."""
        figures = [started_iterations, seconds, cpu_seconds, self._shared.total_iterations()]
        self._tell("round", {"figures": figures})

    def incomplete(self) -> None:
        """See `RoundCounter.incomplete`."""
        self._tell("round", {"figures": None})


class DistantRounds(WorkerRounds):
    """In the trainer: the rounds that a worker process runs with the center. Any thread may call, but for
    what says otherwise."""

    def __init__(self, rounds: RoundCounter) -> None:
        self._rounds = rounds
        self._lost: list[str] = []
        self._tell: Tell | None = None
        self._bytes = (0, 0)
        self._links: dict[str, int] = {}

    @property
    def bytes(self) -> tuple[int, int]:
        """As of the last pulse."""
        return self._bytes

    def link_metrics(self) -> dict[str, int]:
        """As of the last pulse."""
        return self._links

    def bind(self, tell: Tell) -> None:
        """How to tell the worker process; by the control thread, as `lose`."""
        self._tell = tell
        for token in self._lost:
            tell("lose_sync", {"token": token})

    def lose(self, token: str) -> None:
        """A sync node is gone; by the control thread."""
        self._lost.append(token)
        if self._tell is not None:
            self._tell("lose_sync", {"token": token})

    def pulse(self, body: dict[str, Any]) -> None:
        """What the worker process last counted."""
        self._bytes = (int(body["bytes"][0]), int(body["bytes"][1]))
        self._links = body["links"]

    def round(self, body: dict[str, Any]) -> None:
        """A round of the worker process ended; see `RoundNotes`."""
        if body["figures"] is None:
            self._rounds.incomplete()
        else:
            self._rounds.completed(*body["figures"])
