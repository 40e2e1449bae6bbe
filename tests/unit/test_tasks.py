"""Background tasks and the race of a coroutine against its end."""

from __future__ import annotations

import asyncio

import pytest
from shadowsync.pipeline.wire.tasks import TaskSet, race


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
        told: list[str] = []
        ended: list[str] = []
        tasks = TaskSet(lambda error: told.append(str(error)))
        tasks.start(forever(ended))
        await asyncio.wait({tasks.start(fails())})
        await asyncio.sleep(0)
        assert (told, ended) == (["a mistake"], [])
        await tasks.close()
        return told, ended

    # One that is cancelled has not failed.
    assert asyncio.run(run()) == (["a mistake"], ["ended"])


def test_a_race_gives_the_work_or_ends_it() -> None:
    async def run() -> None:
        ended: list[str] = []
        assert await race(asyncio.sleep(0, "done"), forever(ended)) == "done"
        assert ended == ["ended"]
        stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        assert await race(asyncio.sleep(0, "done"), stop) == "done"
        assert not stop.done()
        stop.set_result(None)
        assert await race(forever(ended), stop) is None
        with pytest.raises(ZeroDivisionError, match="a mistake"):
            await race(fails(), forever(ended))

    asyncio.run(run())
