"""When the shadow thread runs rounds. Its loop is the test's, and time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from shadowsync.lab.virtual.clock import run_in_virtual_time
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.shadow import thread
from shadowsync.nodes.shadow.rounds import DueSteps, RoundCounter
from shadowsync.nodes.shadow.schedule import (
    LONGEST_LOOK_SECONDS,
    STALL_LOOK_SECONDS,
    STALLED_SECONDS,
    RoundSchedule,
)
from shadowsync.nodes.shadow.thread import ShadowThread
from shadowsync.nodes.shadow.zmq_peers import ZmqPeers
from shadowsync.pipeline.config.sections import SyncSection
from shadowsync.sync_algos.base import Algorithm
from shadowsync.tests.support.coroutines import run_by

STEP_SECONDS = 0.01
ROUND_SECONDS = 0.002


class Trainer:
    """A trainer without a model: a counter that a test moves, and rounds that only take time.

    Attributes:
        began: the iterations at the beginning of each round.
        ended: the rounds that were not cut off.
        cpu_seconds: of the round by its number.
    """

    def __init__(
        self,
        sync: SyncSection,
        failures: list[BaseException],
        due: DueSteps | None,
        patch: pytest.MonkeyPatch,
    ) -> None:
        self._patch = patch
        self.began: list[int] = []
        self.ended = 0
        self.closed = False
        self.cpu_seconds: Callable[[int], float] = lambda _: 0.0
        self.complete: Callable[[int], bool] = lambda _: True
        self.transport = SimpleNamespace(awaited=False)
        self._iterations = np.zeros(2, dtype=np.int64)
        self._cpu = 0.0
        total = lambda: int(self._iterations.sum())  # noqa: E731
        shared = SimpleNamespace(job=SimpleNamespace(sync=sync), replica=None, total_iterations=total)
        peers = SimpleNamespace(transport=self.transport, sent_bytes=0, received_bytes=0, close=self._close)
        self.shadow = ShadowThread(
            cast("TrainerContext", shared),
            cast("Algorithm", SimpleNamespace(round=self._round)),
            lambda: cast("ZmqPeers", peers),
            RoundCounter(total),
            None,
            failures.append,
            due,
        )
        self._due = due

    async def train(self, iterations: int) -> None:
        """Do so many iterations, of both workers in turn."""
        for number in range(iterations):
            await asyncio.sleep(STEP_SECONDS)
            self._iterations[number % 2] += 1
            if self._due is not None:
                self._due.stepped(int(self._iterations.sum()))

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run the shadow thread's loop beside `work`, and end it after that."""

        async def both() -> None:
            loop = asyncio.get_running_loop()
            clock = SimpleNamespace(monotonic=loop.time, thread_time=lambda: self._cpu)
            self._patch.setattr(thread, "time", clock)
            main = asyncio.ensure_future(self.shadow._until_stopped())
            self.shadow.begin()
            await work()
            self.shadow.stop()
            await main

        run_in_virtual_time(both())

    async def _round(self, *_: Any) -> bool:
        self.began.append(int(self._iterations.sum()))
        number = len(self.began)
        await asyncio.sleep(ROUND_SECONDS)
        self._cpu += self.cpu_seconds(number)
        self.ended += 1
        return self.complete(number)

    def _close(self) -> None:
        self.closed = True


Make = Callable[..., Trainer]


@pytest.fixture
def trainer(failures: list[BaseException], monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes trainers by settings of `sync`; their threads never ran."""
    made: list[Trainer] = []

    def make(due: DueSteps | None = None, **settings: Any) -> Trainer:
        made.append(Trainer(SyncSection(**settings), failures, due, monkeypatch))
        return made[-1]

    yield make
    for own in made:
        assert own.shadow.join(60.0)


def gaps(own: Trainer) -> list[int]:
    return [after - before for before, after in pairwise(own.began)]


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("gap", [1, 2, 10])
def test_rounds_follow_iterations(trainer: Make, gap: int, told: bool) -> None:
    own = trainer(DueSteps() if told else None, gap=gap, duty=1.0)
    own.run(lambda: own.train(100))
    assert own.began[0] == 0
    assert set(gaps(own)) == {gap}
    assert own.began[-1] >= 100 - gap


class CountedLooks(RoundSchedule):
    """A schedule that counts how often it is asked."""

    looks = 0

    def wait_seconds(self, *of_schedule: Any, **more: Any) -> float:
        CountedLooks.looks += 1
        return super().wait_seconds(*of_schedule, **more)


def test_nobody_looks_at_steps_that_are_told(trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for a stall, four times a second; a thread that is not told looks 20 times, the control."""
    monkeypatch.setattr(thread, "RoundSchedule", CountedLooks)

    def looks(due: DueSteps | None) -> int:
        CountedLooks.looks = 0
        own = trainer(due, gap=10_000, duty=1.0)
        own.run(lambda: own.train(1_000))
        assert own.began == [0]
        return CountedLooks.looks

    seconds = 1_000 * STEP_SECONDS
    assert looks(DueSteps()) <= seconds / STALL_LOOK_SECONDS + 2
    assert looks(None) >= seconds / LONGEST_LOOK_SECONDS


def test_steps_that_come_while_it_is_too_early_wake_nobody(trainer: Make) -> None:
    due = DueSteps()
    own = trainer(due, gap=2, duty=0.01)
    own.cpu_seconds = lambda _: 0.01
    wakes: list[int] = []
    waking = due.wake

    def wake() -> None:
        wakes.append(1)
        waking()

    due.wake = wake
    own.run(lambda: own.train(1_000))
    # Each round but the first costs a second, of 100 steps: one wake on the way, and none for each step.
    assert len(own.began) == pytest.approx(11, abs=1)
    assert len(wakes) <= len(own.began)


def test_without_a_gap_they_follow_each_other(trainer: Make) -> None:
    own = trainer(duty=1.0)
    own.run(lambda: own.train(100))
    assert len(own.began) == pytest.approx(100 * STEP_SECONDS / ROUND_SECONDS, rel=0.01)


@pytest.mark.parametrize("told", [False, True])
def test_without_an_iteration_rounds_go_on_by_time(trainer: Make, told: bool) -> None:
    own = trainer(DueSteps() if told else None, gap=50, duty=1.0)

    async def work() -> None:
        await own.train(10)
        assert own.began == [0]
        await asyncio.sleep(5.5 * STALLED_SECONDS)

    own.run(work)
    # One of what it had trained, and then one a second.
    assert own.began == [0, *[10] * 5]


def test_a_round_that_another_trainer_waits_for_begins(trainer: Make) -> None:
    own = trainer(gap=50, duty=1.0)

    async def work() -> None:
        await own.train(10)
        own.transport.awaited = True
        own.shadow.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(ROUND_SECONDS / 2)
        own.transport.awaited = False
        await own.train(20)

    own.run(work)
    assert own.began == [0, 10]


def test_an_incomplete_round_is_tried_again_soon(trainer: Make) -> None:
    own = trainer(gap=50, duty=1.0)
    own.complete = lambda number: number != 2
    own.run(lambda: own.train(110))
    assert own.began[:2] == [0, 50]
    assert 50 < own.began[2] <= 56
    assert own.began[3] == own.began[2] + 50


def test_it_ends_in_the_middle_of_a_round(trainer: Make) -> None:
    own = trainer(gap=1, duty=1.0)
    own.run(lambda: asyncio.sleep(ROUND_SECONDS / 2))
    assert (own.began, own.ended, own.closed) == ([0], 0, True)


def test_rounds_that_never_wait_do_not_hold_the_loop(trainer: Make) -> None:
    own = trainer(duty=1.0)

    async def at_once(*_: Any) -> bool:
        own.began.append(0)
        assert len(own.began) < 1000, "nothing else runs"
        return True

    async def work() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    own.shadow._algorithm = cast("Algorithm", SimpleNamespace(round=at_once))
    own.run(work)
    assert own.began
    assert own.closed


def test_what_is_told_before_there_are_peers_is_not_lost(trainer: Make) -> None:
    own = trainer(duty=1.0)
    reported: list[ZmqPeers] = []
    own.shadow.call_with_peers(reported.append)
    own.run(lambda: asyncio.sleep(ROUND_SECONDS))
    assert [peers.transport for peers in reported] == [own.transport]


@run_by(run_in_virtual_time)
async def test_who_gives_up_before_there_are_peers_leaves_them_to_be_closed(trainer: Make) -> None:
    """An open socket would keep the context of a trainer that is interrupted at its start from ending."""
    own = trainer(duty=1.0)
    waiting = asyncio.ensure_future(own.shadow.wait_idle())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    main = asyncio.ensure_future(own.shadow._until_stopped())
    await own.shadow.wait_idle()
    own.shadow.stop()
    await main
    assert own.closed
