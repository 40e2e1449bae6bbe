"""Work on a thread that is waited for also when nobody wants it any more."""

from __future__ import annotations

import asyncio
import threading

import pytest
from shadowsync.nodes.runtime.threads import run_in_thread_uncancellable


def test_its_result_and_its_error_are_those_of_the_work() -> None:
    def fail() -> None:
        raise KeyError("x")

    assert asyncio.run(run_in_thread_uncancellable(divmod, 7, 2)) == (3, 1)
    with pytest.raises(KeyError):
        asyncio.run(run_in_thread_uncancellable(fail))


@pytest.mark.parametrize("fails", [False, True])
def test_cancelled_it_waits_for_the_end_and_is_cancelled_then(fails: bool) -> None:
    begun, go_on = threading.Event(), threading.Event()
    ended: list[str] = []

    def work() -> None:
        begun.set()
        assert go_on.wait(60.0)
        ended.append("work")
        if fails:
            raise KeyError("x")

    async def body() -> None:
        task = asyncio.ensure_future(run_in_thread_uncancellable(work))
        await asyncio.to_thread(begun.wait, 60.0)
        for _ in range(2):
            task.cancel()
            await asyncio.wait({task}, timeout=0.05)
            assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError) as raised:
            await task
        assert ended == ["work"]
        assert isinstance(raised.value.__cause__, KeyError) is fails

    asyncio.run(body())
