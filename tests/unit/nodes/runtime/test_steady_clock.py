"""Timeouts go by a clock that stands still while the process does."""

from __future__ import annotations

import asyncio
import time

import pytest
from shadowsync.lab.virtual.clock import VirtualTimeSelector
from shadowsync.nodes.runtime.steady_clock import (
    LONGEST_STEP_SECONDS,
    LOOK_SECONDS,
    SteadyClock,
    SteadyLoop,
    run_steadily,
)


class Real:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_it_goes_as_the_real_one_while_somebody_looks() -> None:
    real = Real()
    clock = SteadyClock(1.0, real)
    began = clock.now()
    for _ in range(50):
        real.seconds += 0.5
        clock.now()
    assert clock.now() - began == pytest.approx(25.0)


def test_a_pause_counts_for_one_step() -> None:
    real = Real()
    clock = SteadyClock(1.0, real)
    began = clock.now()
    real.seconds += 3600.0
    assert clock.now() - began == pytest.approx(1.0)
    real.seconds += 0.5
    assert clock.now() - began == pytest.approx(1.5)


@pytest.mark.parametrize("steady", [True, False])
def test_an_answer_that_waited_through_a_pause_is_in_time(steady: bool) -> None:
    """The control is a clock that runs on: there the timeout ends first."""
    pauses = [0.0]

    def real() -> float:
        return time.monotonic() + pauses[0]

    loop = SteadyLoop(real=real) if steady else asyncio.SelectorEventLoop()
    if not steady:
        loop.time = real  # type: ignore[method-assign]

    async def main() -> str:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(asyncio.wait_for(answer, 60.0))
        await asyncio.sleep(0)
        pauses[0] += 3600.0
        # It has arrived, and is received when the loop has looked at its timers.
        for _ in range(3):
            await asyncio.sleep(0)
        if not answer.done():
            answer.set_result("in time")
        try:
            return await waiting
        except TimeoutError:
            return "too late"

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(main()) == ("in time" if steady else "too late")


def test_timers_come_in_time_where_nothing_stands_still() -> None:
    """The loop looks in between, though it has nothing else to do; otherwise it would take twice as long."""
    virtual = VirtualTimeSelector()
    seconds = 3 * LONGEST_STEP_SECONDS

    async def main() -> None:
        await asyncio.sleep(seconds)

    with asyncio.Runner(loop_factory=lambda: SteadyLoop(virtual, lambda: virtual.now)) as runner:
        runner.run(main())
    assert seconds <= virtual.now <= seconds + LOOK_SECONDS


def test_a_coroutine_is_run_on_such_a_loop() -> None:
    async def main() -> bool:
        return isinstance(asyncio.get_running_loop(), SteadyLoop)

    assert run_steadily(main())
