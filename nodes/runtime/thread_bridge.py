"""One bridge from a thread to an asyncio loop: a result that the loop awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class ThreadBridge(Generic[T]):
    """A result on its way from a thread to the loop that this is made on.

    Any thread may call `give`, `fail` and `run`. What comes when nobody waits any more is dropped.

    Attributes:
        result: to be awaited on the loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.result: asyncio.Future[T] = self._loop.create_future()

    def give(self, result: T) -> None:
        """The result is there."""
        self._on_loop(lambda: self.result.set_result(result))

    def fail(self, error: BaseException) -> None:
        """There is none, for this reason."""
        self._on_loop(lambda: self.result.set_exception(error))

    def run(self, work: Callable[[], T]) -> None:
        """Runs `work` here and gives its result, or its exception."""
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            self.fail(error)
        else:
            self.give(result)

    def _on_loop(self, settle: Callable[[], None]) -> None:
        def if_awaited() -> None:
            if not self.result.done():
                settle()

        # A loop that has ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(if_awaited)
