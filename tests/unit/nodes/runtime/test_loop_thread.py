"""A thread with a loop: coroutines of another loop on it, and its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from shadowsync.nodes.runtime.loops import LoopThread
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.real_time import run_in_real_time

WAIT_SECONDS = 60.0


class Idle(LoopThread):
    """Waits until it is cancelled, and says so."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        super().__init__("idle", self.failures.append)
        self.was_cancelled = False

    async def main(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise


@pytest.fixture
def thread() -> Iterator[Idle]:
    """A thread that may be started; afterwards it has ended, without an error."""
    idle = Idle()
    yield idle
    idle.stop()
    assert idle.join(WAIT_SECONDS)
    assert idle.failures == []


async def _where() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


async def _fail() -> None:
    await asyncio.sleep(0)
    raise LookupError("no such row")


@run_by(run_in_real_time)
async def test_a_coroutine_runs_on_the_thread_and_its_error_is_raised_here(thread: Idle) -> None:
    early = asyncio.ensure_future(thread.run_coroutine(_where))
    await asyncio.sleep(0)
    thread.start()
    assert await early == "idle"
    with pytest.raises(LookupError, match="no such row"):
        await thread.run_coroutine(_fail)


@run_by(run_in_real_time)
async def test_who_is_cancelled_here_is_cancelled_there(thread: Idle) -> None:
    ended = threading.Event()
    began = threading.Event()

    async def forever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    thread.start()
    waiting = asyncio.ensure_future(thread.run_coroutine(forever))
    assert await asyncio.to_thread(began.wait, WAIT_SECONDS)
    waiting.cancel()
    assert await asyncio.to_thread(ended.wait, WAIT_SECONDS)


@run_by(run_in_real_time)
async def test_who_gives_up_before_the_thread_runs_leaves_it_to_the_others(thread: Idle) -> None:
    waiting = asyncio.ensure_future(thread.run_coroutine(_where))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    thread.start()
    assert await thread.run_coroutine(_where) == "idle"


@run_by(run_in_real_time)
async def test_the_end_of_the_thread_cancels_who_waits_for_it(thread: Idle) -> None:
    thread.start()
    waiting = asyncio.ensure_future(thread.run_coroutine(asyncio.Event().wait))
    await thread.run_coroutine(_where)
    thread.stop()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert thread.was_cancelled


class Lingering(Idle):
    """Its loop goes on for a task that does not end when it is cancelled, as loops do while they clean up."""

    def __init__(self) -> None:
        super().__init__()
        self.lingers, self.may_end = threading.Event(), threading.Event()

    async def main(self) -> None:
        self.task = asyncio.ensure_future(self._linger())
        await super().main()

    async def _linger(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.lingers.set()
            await asyncio.to_thread(self.may_end.wait, WAIT_SECONDS)


@pytest.mark.parametrize("closed", [False, True], ids=["it cleans up", "it is closed"])
def test_what_comes_after_the_end_is_not_begun(closed: bool) -> None:
    thread, begun = Lingering(), list[bool]()

    async def work() -> None:
        begun.append(True)

    async def come_late() -> None:
        thread.start()
        await thread.run_coroutine(_where)
        thread.stop()
        assert await asyncio.to_thread(thread.lingers.wait, WAIT_SECONDS)
        if closed:
            thread.may_end.set()
            assert await asyncio.to_thread(thread.join, WAIT_SECONDS)
        late = asyncio.ensure_future(thread.run_coroutine(work))
        await asyncio.wait([late])
        assert late.cancelled()

    try:
        asyncio.run(asyncio.wait_for(come_late(), WAIT_SECONDS))
    finally:
        thread.may_end.set()
    assert thread.join(WAIT_SECONDS)
    assert (begun, thread.failures) == ([], [])


def test_a_thread_that_is_stopped_while_it_starts_still_closes_what_it_was_given(thread: Idle) -> None:
    """Otherwise its socket would stay open, and its node's context could never be terminated."""
    thread.stop()
    thread.start()
    assert thread.join(WAIT_SECONDS)
    assert thread.was_cancelled
