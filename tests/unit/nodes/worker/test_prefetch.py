"""A worker's depth, driven by a small model of a worker, its embedding node and its reader."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import pytest
from shadowsync.nodes.worker.prefetch import (
    FIRST_CREDIT,
    FIRST_LOOKUPS_AHEAD,
    WINDOW_SECONDS,
    WINDOW_STEPS,
    Prefetch,
    WorkerClock,
    require_memory,
)
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError

STEP_SECONDS = 0.004
LONG_SECONDS = 0.04
SHORT_SECONDS = 0.0005
ENOUGH_WINDOWS = 12


@dataclass
class Link:
    """A link that answers after a round trip, and one answer after the other.

    `answer_seconds` is the time for which an answer keeps it: the next one waits for that.
    """

    round_trip_seconds: float
    answer_seconds: float = 0.0
    free_at: float = 0.0

    def answered_at(self, asked_at: float) -> float:
        """Return when the answer to a request of now arrives."""
        self.free_at = max(self.free_at, asked_at + self.round_trip_seconds) + self.answer_seconds
        return self.free_at


@dataclass
class OneWorker:
    """A worker on a clock of its own; each batch is asked of the reader, looked up, and computed."""

    prefetch: Prefetch
    node: Link
    reader: Link = field(default_factory=lambda: Link(0.0))
    step_seconds: float = STEP_SECONDS
    now: float = 0.0
    asked: deque[float] = field(default_factory=deque)
    looked_up: deque[tuple[float, float]] = field(default_factory=deque)
    waits: dict[str, float] = field(default_factory=lambda: {"reader": 0.0, "vectors": 0.0})

    def run(self, windows: int = ENOUGH_WINDOWS) -> float:
        """Train for so many windows; return the steps per second in the last one."""
        speed = 0.0
        for _ in range(windows):
            began, steps = self.now, 0
            while steps < WINDOW_STEPS or self.now - began < WINDOW_SECONDS:
                self._step()
                steps += 1
            speed = steps / (self.now - began)
        return speed

    def step(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    def _step(self) -> None:
        self._ask()
        if not self.looked_up:
            self._wait("reader", self.asked[0])
            self._ask()
        asked_at, arrives = self.looked_up[0]
        if arrives > self.now:
            self._wait("vectors", arrives)
            self.prefetch.answered(self.now - asked_at)
        self._ask()
        self.looked_up.popleft()
        ready = 0
        for _, arrives in self.looked_up:
            ready += arrives <= self.now
        clock = WorkerClock(self.now, 0.0, self.waits["reader"], self.waits["vectors"])
        self.prefetch.stepped(clock, ready)
        self.now += self.step_seconds

    def _ask(self) -> None:
        while len(self.asked) + len(self.looked_up) < self.prefetch.credit:
            self.asked.append(self.reader.answered_at(self.now))
        while self.asked and self.asked[0] <= self.now and len(self.looked_up) <= self.prefetch.lookups_ahead:
            self.asked.popleft()
            self.looked_up.append((self.now, self.node.answered_at(self.now)))

    def _wait(self, cause: str, until: float) -> None:
        self.waits[cause] += until - self.now
        self.now = until


def measured(
    lookups_ahead: int | Literal["auto"] = "auto", credit: int | Literal["auto"] = "auto", readers: int = 1
) -> Prefetch:
    return Prefetch(lookups_ahead, credit, readers)


def test_a_long_round_trip_is_hidden() -> None:
    worker = OneWorker(measured(), Link(LONG_SECONDS))
    assert worker.run() == pytest.approx(1 / STEP_SECONDS, rel=0.02)
    assert LONG_SECONDS / STEP_SECONDS <= worker.prefetch.lookups_ahead <= LONG_SECONDS / STEP_SECONDS + 2


def test_the_first_window_begins_with_the_first_step() -> None:
    """Whatever the clock says then: the machine may run for days."""
    worker = OneWorker(measured(), Link(LONG_SECONDS), now=1e6)
    worker.step(WINDOW_STEPS)
    assert worker.prefetch.lookups_ahead == FIRST_LOOKUPS_AHEAD
    worker.step(WINDOW_STEPS - 1)
    assert worker.prefetch.lookups_ahead > FIRST_LOOKUPS_AHEAD


def test_a_fixed_depth_waits_for_it() -> None:
    worker = OneWorker(measured(lookups_ahead=1), Link(LONG_SECONDS))
    assert worker.run() < 0.3 / STEP_SECONDS


def test_a_short_round_trip_needs_no_more_than_the_first_depth() -> None:
    worker = OneWorker(measured(), Link(SHORT_SECONDS))
    worker.run()
    assert worker.prefetch.lookups_ahead == FIRST_LOOKUPS_AHEAD
    assert worker.prefetch.credit == FIRST_CREDIT


def test_a_full_link_gets_no_deeper_queue() -> None:
    """Each answer takes ten steps' time; one more in flight only waits longer."""
    worker = OneWorker(measured(), Link(SHORT_SECONDS, answer_seconds=10 * STEP_SECONDS))
    worker.run(windows=3 * ENOUGH_WINDOWS)
    assert worker.prefetch.lookups_ahead == FIRST_LOOKUPS_AHEAD


def test_the_depth_follows_a_link_that_changes() -> None:
    worker = OneWorker(measured(), Link(SHORT_SECONDS))
    worker.run()
    worker.node.round_trip_seconds = LONG_SECONDS
    assert worker.run() == pytest.approx(1 / STEP_SECONDS, rel=0.02)
    deep = worker.prefetch.lookups_ahead
    worker.node.round_trip_seconds = SHORT_SECONDS
    worker.run(windows=2 * ENOUGH_WINDOWS)
    assert FIRST_LOOKUPS_AHEAD <= worker.prefetch.lookups_ahead <= 2 < deep


def test_a_far_reader_gets_more_credit() -> None:
    worker = OneWorker(measured(), Link(SHORT_SECONDS), reader=Link(LONG_SECONDS))
    assert worker.run() == pytest.approx(1 / STEP_SECONDS, rel=0.02)
    assert worker.prefetch.credit > FIRST_CREDIT
    control = OneWorker(measured(credit=FIRST_CREDIT), Link(SHORT_SECONDS), reader=Link(LONG_SECONDS))
    assert control.run() < 0.5 / STEP_SECONDS


def test_a_slow_reader_gets_no_more_than_one_trial() -> None:
    slow = Link(SHORT_SECONDS, answer_seconds=5 * STEP_SECONDS)
    worker = OneWorker(measured(), Link(SHORT_SECONDS), reader=slow)
    worker.run()
    assert worker.prefetch.credit == 2 * FIRST_CREDIT


def test_numbers_stay_as_they_are_given() -> None:
    worker = OneWorker(measured(lookups_ahead=3, credit=6), Link(LONG_SECONDS), reader=Link(LONG_SECONDS))
    worker.run()
    assert (worker.prefetch.lookups_ahead, worker.prefetch.credit) == (3, 6)


def test_a_given_credit_bounds_the_lookups() -> None:
    worker = OneWorker(measured(credit=6), Link(LONG_SECONDS))
    worker.run()
    assert worker.prefetch.lookups_ahead == 5


@pytest.mark.parametrize("readers", [1, 3])
def test_credit_suffices_for_a_given_depth(readers: int) -> None:
    """A worker has at least half of its credit at hand: the batch that it computes, and those ahead."""
    assert readers * measured(lookups_ahead=16, readers=readers).credit >= 2 * 17


def test_pushes_in_flight_follow_the_depth() -> None:
    assert measured(lookups_ahead=1).pending_pushes(nodes=1) == 8
    assert measured(lookups_ahead=16).pending_pushes(nodes=2) == 2 * 2 * 17


def job_with(optimizer: str = "sgd", **trainer: object) -> Job:
    data = {"format": "criteo_tsv", "path": ["x"]}
    return Job.model_validate({"data": data, "embedding": {"optimizer": optimizer}, "trainer": trainer})


@pytest.mark.parametrize(
    ("optimizer", "exact", "floats"),
    [("adam", False, 2 * 16), ("sgd", True, 3 * 16), ("adam", True, 3 * 16 + 2 * (2 * 16 + 1))],
)
def test_a_depth_that_memory_cannot_hold_is_refused(optimizer: str, exact: bool, floats: int) -> None:
    job = job_with(optimizer, lookups_ahead=16, workers=2, exact_rows=exact)
    assert {table.dim for table in job.tables} == {16}
    needed_bytes = 2 * 17 * job.trainer.batch * len(job.tables) * floats * 4
    require_memory(job, needed_bytes)
    with pytest.raises(JobFileError, match=r"16 batches ahead, of 2 workers, need .* are free") as caught:
        require_memory(job, needed_bytes - 1)
    assert caught.value.where == "trainer.lookups_ahead"
    require_memory(job_with(), 0)
