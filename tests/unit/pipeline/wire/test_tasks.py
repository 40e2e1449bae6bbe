"""Background tasks and the race of a coroutine against its end."""

from __future__ import annotations

import asyncio
import threading

import pytest
from shadowsync.pipeline.errors import ClusterError
from shadowsync.pipeline.wire.tasks import TaskSet, background, on_daemon_thread, race
from shadowsync.tests.support.coroutines import run_by


async def fails() -> None:
    await asyncio.sleep(0)
    raise ZeroDivisionError("a mistake")


async def forever(ended: list[str]) -> str:
    try:
        await asyncio.Event().wait()
        return "never"
    finally:
        ended.append("ended")


def test_a_failure_is_told_and_the_other_tasks_go_on() -> None:
    async def run() -> tuple[list[str], list[str]]:
        reported: list[str] = []
        ended: list[str] = []
        tasks = TaskSet(lambda error: reported.append(str(error)))
        tasks.start(forever(ended))
        await asyncio.wait({tasks.start(fails())})
        await asyncio.sleep(0)
        assert (reported, ended) == (["a mistake"], [])
        await tasks.close()
        return reported, ended

    # One that is cancelled has not failed.
    assert asyncio.run(run()) == (["a mistake"], ["ended"])


def test_a_block_ends_what_runs_in_its_background() -> None:
    async def run() -> list[str]:
        ended: list[str] = []
        async with background(forever(ended), forever(ended), asyncio.sleep(0)):
            await asyncio.sleep(0)
            assert ended == []
        return ended

    assert asyncio.run(run()) == ["ended", "ended"]


def test_a_failure_in_the_background_ends_the_block_and_is_raised_as_itself() -> None:
    async def run(ended: list[str]) -> None:
        async with background(forever(ended), fails()):
            await forever(ended)

    ended: list[str] = []
    with pytest.raises(ZeroDivisionError, match="a mistake"):
        asyncio.run(run(ended))
    assert ended == ["ended", "ended"]


def test_what_a_block_raises_is_raised_as_itself() -> None:
    """An exit code belongs to the error's type, so an ExceptionGroup around it would be another exit code."""

    async def run(ended: list[str]) -> None:
        async with background(forever(ended)):
            await asyncio.sleep(0)
            raise ClusterError("the coordinator did not start") from OSError("why")

    ended: list[str] = []
    with pytest.raises(ClusterError, match="did not start") as caught:
        asyncio.run(run(ended))
    assert isinstance(caught.value.__cause__, OSError)
    assert ended == ["ended"]


def test_who_is_cancelled_ends_the_background_too() -> None:
    async def block(ended: list[str]) -> None:
        async with background(forever(ended)):
            await asyncio.Event().wait()

    async def run() -> list[str]:
        ended: list[str] = []
        task = asyncio.ensure_future(block(ended))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return ended

    assert asyncio.run(run()) == ["ended"]


@run_by(asyncio.run)
async def test_a_race_gives_the_work_or_ends_it() -> None:
    ended: list[str] = []
    assert await race(asyncio.sleep(0, "done"), forever(ended)) == "done"
    assert ended == ["ended"]
    stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    assert await race(asyncio.sleep(0, "done"), stop) == "done"
    assert not stop.done()
    stop.set_result(None)
    assert await race(forever(ended), stop) is None
    del ended[:]
    assert await race(asyncio.gather(forever(ended), asyncio.sleep(0)), stop) is None
    assert ended == ["ended"]
    both = await race(asyncio.gather(asyncio.sleep(0, "a"), asyncio.sleep(0, "b")), forever(ended))
    assert list(both or ()) == ["a", "b"]
    with pytest.raises(ZeroDivisionError, match="a mistake"):
        await race(fails(), forever(ended))


def test_a_daemon_thread_returns_and_raises_what_its_work_does() -> None:
    async def run() -> int:
        with pytest.raises(ZeroDivisionError):
            await on_daemon_thread(lambda: 1 // 0, "fails")
        return await on_daemon_thread(lambda: 7, "works")

    assert asyncio.run(run()) == 7


def test_the_end_of_a_loop_does_not_wait_for_a_daemon_thread() -> None:
    """As `asyncio.to_thread` does: with it this would hang."""
    held = threading.Event()

    async def run() -> None:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        def work() -> None:
            loop.call_soon_threadsafe(begun.set)
            held.wait()

        task = asyncio.ensure_future(on_daemon_thread(work, "held"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert not held.is_set()
    held.set()
