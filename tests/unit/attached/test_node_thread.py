"""Work for a node's thread: it runs, or is cancelled, also where the node ends meanwhile."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
from typing import Any

import pytest
from shadowsync.attached import node_thread
from shadowsync.attached.node_thread import NodeThread
from shadowsync.nodes.runtime.main_loop import run_pause_aware

ENOUGH_SECONDS = 60.0


class HeldNode:
    """A node that runs until it is let go."""

    exit_text = ""

    def __init__(self, role: Any, _settings: Any, _hooks: Any) -> None:
        self.let_go = role
        self.loop = asyncio.get_running_loop()

    async def run(self) -> int:
        await self.let_go.wait()
        return 0

    def fail(self, _error: BaseException) -> None:
        self.loop.call_soon_threadsafe(self.let_go.set)


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> NodeThread[Any]:
    monkeypatch.setattr(node_thread, "Node", HeldNode)
    settings: Any = None
    make_role: Any = asyncio.Event
    return NodeThread(make_role, settings, "node")


def end(thread: NodeThread[Any]) -> None:
    thread.fail(RuntimeError("over"))
    assert thread.join(ENOUGH_SECONDS)


async def _answer() -> int:
    return 42


async def _wrong() -> int:
    raise ValueError("wrong")


async def _never() -> int:
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


def test_results_and_errors_come_back(thread: NodeThread[Any]) -> None:
    thread.start()
    assert thread.submit(_answer).result(ENOUGH_SECONDS) == 42
    with pytest.raises(ValueError, match="wrong"):
        thread.submit(_wrong).result(ENOUGH_SECONDS)
    end(thread)


def test_work_under_way_is_cancelled_as_the_node_ends(thread: NodeThread[Any]) -> None:
    thread.start()
    future = thread.submit(_never)
    end(thread)
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(ENOUGH_SECONDS)


def test_work_for_a_node_that_has_ended_is_cancelled(thread: NodeThread[Any]) -> None:
    thread.start()
    end(thread)
    assert thread.submit(_answer).cancelled()


def test_work_that_comes_while_the_node_ends_is_done_or_cancelled(thread: NodeThread[Any]) -> None:
    """No coroutine is left that nobody awaited, and no future that is never done."""
    thread.start()
    futures: list[concurrent.futures.Future[int]] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set() and len(futures) < 20_000:
            futures.append(thread.submit(_answer))

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    end(thread)
    over.set()
    for asker in askers:
        asker.join()
    done, left = concurrent.futures.wait(futures, timeout=ENOUGH_SECONDS)
    assert not left
    assert all(future.cancelled() or future.result() == 42 for future in done)
    # A coroutine that was never awaited warns where it is collected.
    gc.collect()


def test_work_that_comes_after_the_last_step_of_the_loop_is_cancelled(
    thread: NodeThread[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is over, and its loop not yet closed."""
    at_end, asked = threading.Event(), threading.Event()

    def run(main: Any) -> Any:
        async def then_held() -> Any:
            try:
                return await main
            finally:
                at_end.set()
                assert asked.wait(ENOUGH_SECONDS)

        return run_pause_aware(then_held())

    monkeypatch.setattr(node_thread, "run_pause_aware", run)
    thread.start()
    thread.fail(RuntimeError("over"))
    assert at_end.wait(ENOUGH_SECONDS)
    future = thread.submit(_answer)
    asked.set()
    assert future.cancelled()
    assert thread.join(ENOUGH_SECONDS)
    gc.collect()
