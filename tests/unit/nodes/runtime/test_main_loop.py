"""An interrupt of a command: before its loop runs, while it waits, and while it computes.

Timeouts go by a clock that stands still while the process does.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from shadowsync.lab.virtual.clock import VirtualTimeSelector
from shadowsync.nodes.runtime import main_loop
from shadowsync.nodes.runtime.main_loop import (
    LONGEST_STEP_SECONDS,
    LOOK_SECONDS,
    PauseAwareClock,
    PauseAwareLoop,
    run_interruptible,
    run_pause_aware,
)

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """As the command line has them."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    for number in NUMBERS:
        signal.signal(number, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def wait_for_ever(*, caught: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        caught.append("cancelled")
        raise


async def give(value: int) -> int:
    await asyncio.sleep(0)
    return value


def interrupted_before_the_loop(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """A `run_pause_aware` that is interrupted when it has the coroutine and no task yet."""
    run = run_pause_aware

    def interrupted(main: Coroutine[Any, Any, Any]) -> Any:
        signal.raise_signal(number)
        return run(main)

    monkeypatch.setattr(main_loop, "run_pause_aware", interrupted)
    return interrupted


@pytest.mark.parametrize("number", NUMBERS)
def test_before_the_first_step(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    begun: list[str] = []
    interrupted_before_the_loop(monkeypatch, number)
    with pytest.raises(KeyboardInterrupt):
        run_interruptible(lambda: wait_for_ever(caught=begun))
    assert not begun


@pytest.mark.parametrize("number", NUMBERS)
def test_without_it_the_coroutine_is_never_awaited(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    run = interrupted_before_the_loop(monkeypatch, number)
    with pytest.warns(RuntimeWarning, match="was never awaited"):  # noqa: SIM117
        with pytest.raises(KeyboardInterrupt):
            run(wait_for_ever(caught=[]))


@pytest.mark.parametrize("number", NUMBERS)
def test_while_it_waits(number: int) -> None:
    caught: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop().call_soon(signal.raise_signal, number)
        await wait_for_ever(caught=caught)

    with pytest.raises(KeyboardInterrupt):
        run_interruptible(main)
    assert caught == ["cancelled"]


def test_the_second_one_does_not_wait_for_an_await() -> None:
    computed: list[int] = []

    async def main() -> None:
        for step in range(3):
            computed.append(step)
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        run_interruptible(main)
    assert computed == [0, 1]


def test_handlers_of_the_loop_are_used_and_those_from_before_put_back() -> None:
    heard: list[str] = []

    async def main() -> int:
        loop = asyncio.get_running_loop()
        heeded = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, heeded.set)
        signal.raise_signal(signal.SIGTERM)
        await heeded.wait()
        heard.append("SIGTERM")
        return await give(7)

    assert run_interruptible(main) == 7
    assert heard == ["SIGTERM"]
    assert [signal.getsignal(number) for number in NUMBERS] == [signal.default_int_handler] * 2


def test_other_handlers_stay() -> None:
    heard: list[int] = []

    def own(number: int, _: object) -> None:
        heard.append(number)

    signal.signal(signal.SIGTERM, own)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def main() -> int:
        for number in NUMBERS:
            signal.raise_signal(number)
        return await give(3)

    assert run_interruptible(main) == 3
    assert heard == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is own


def test_its_own_cancellation_is_no_interrupt() -> None:
    async def main() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_interruptible(main)


class Real:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_it_goes_as_the_real_one_while_somebody_looks() -> None:
    real = Real()
    clock = PauseAwareClock(1.0, real)
    began = clock.now()
    for _ in range(50):
        real.seconds += 0.5
        clock.now()
    assert clock.now() - began == pytest.approx(25.0)


def test_a_pause_counts_for_one_step() -> None:
    real = Real()
    clock = PauseAwareClock(1.0, real)
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

    loop = PauseAwareLoop(real=real) if steady else asyncio.SelectorEventLoop()
    if not steady:
        loop.time = real  # type: ignore[method-assign]

    async def main() -> str:
        reply: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(asyncio.wait_for(reply, 60.0))
        await asyncio.sleep(0)
        pauses[0] += 3600.0
        # It has arrived, and is received when the loop has looked at its timers.
        for _ in range(3):
            await asyncio.sleep(0)
        if not reply.done():
            reply.set_result("in time")
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

    with asyncio.Runner(loop_factory=lambda: PauseAwareLoop(virtual, lambda: virtual.now)) as runner:
        runner.run(main())
    assert seconds <= virtual.now <= seconds + LOOK_SECONDS


def test_a_coroutine_is_run_on_such_a_loop() -> None:
    async def main() -> bool:
        return isinstance(asyncio.get_running_loop(), PauseAwareLoop)

    assert run_pause_aware(main())


def test_what_a_thread_begins_on_a_loop_that_ends_is_cancelled_before_it_is_closed() -> None:
    """The runner has cancelled all by then; what it left would wait on a closed loop until it is garbage."""
    ends, caught, begun = threading.Event(), list[str](), list[asyncio.Task[None]]()

    async def until_all_are_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.set()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def begin() -> None:
            begun.append(loop.create_task(wait_for_ever(caught=caught)))

        def begin_late() -> None:
            assert ends.wait(60.0)
            loop.call_soon_threadsafe(begin)

        begun.append(loop.create_task(until_all_are_cancelled()))
        await asyncio.sleep(0)
        loop.run_in_executor(None, begin_late)

    run_pause_aware(main())
    assert [task.cancelled() for task in begun] == [True, True]
    assert caught == ["cancelled"]
