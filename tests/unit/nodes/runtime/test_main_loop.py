"""An interrupt of a command: before its loop runs, while it waits, and while it computes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from shadowsync.nodes.runtime import main_loop
from shadowsync.nodes.runtime.main_loop import run_interruptible
from shadowsync.nodes.runtime.steady_clock import run_steadily

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
    """A `run_steadily` that is interrupted when it has the coroutine and no task yet."""
    run = run_steadily

    def interrupted(main: Coroutine[Any, Any, Any]) -> Any:
        signal.raise_signal(number)
        return run(main)

    monkeypatch.setattr(main_loop, "run_steadily", interrupted)
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
