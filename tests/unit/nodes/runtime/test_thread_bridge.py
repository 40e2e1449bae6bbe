"""A thread's result on the loop that waits for it."""

from __future__ import annotations

import asyncio
import threading

import pytest
from shadowsync.nodes.runtime.threads import ThreadBridge
from shadowsync.tests.support.coroutines import run_by


def on_a_thread(work: object) -> None:
    thread = threading.Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    thread.join()


@run_by(asyncio.run)
async def test_a_result_and_an_exception_arrive() -> None:
    bridge = ThreadBridge[str]()
    on_a_thread(lambda: bridge.run(lambda: threading.current_thread().name))
    assert await bridge.result != threading.current_thread().name
    failing = ThreadBridge[float]()
    on_a_thread(lambda: failing.run(lambda: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        await failing.result


def test_what_comes_when_nobody_waits_is_dropped() -> None:
    async def run() -> tuple[ThreadBridge[int], list[str]]:
        wrong: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: wrong.append(str(what)))
        bridge = ThreadBridge[int]()
        bridge.result.cancel()
        bridge.give(1)
        await asyncio.sleep(0)
        return bridge, wrong

    bridge, wrong = asyncio.run(run())
    assert wrong == []
    # Its loop is gone.
    bridge.give(2)
