"""Threads with an asyncio loop of their own."""

from __future__ import annotations

import asyncio
import concurrent.futures
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from ...pipeline.wire.tasks import race
from .thread_bridge import ThreadBridge
from .threads import Service

T = TypeVar("T")


class LoopThread(Service):
    """Runs the coroutine `main` on a loop of its own, and cancels it when told to stop."""

    def __init__(self, name: str, failed: Callable[[BaseException], None]) -> None:
        super().__init__(name, failed)
        self._running_loop: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._ended = asyncio.Event()

    @abstractmethod
    async def main(self) -> None:
        """What the thread does, until it is cancelled."""

    def body(self) -> None:
        """See `Service.body`."""
        asyncio.run(self._until_stopped())

    def stop(self) -> None:
        """Ends the thread, wherever `main` waits; any thread may call it."""
        super().stop()
        self.call(self._ended.set)

    def call(self, command: Callable[[], object]) -> None:
        """Runs `command` on the loop, as soon as there is one; any thread may call it.

        If the loop has ended, or ends first, it is never run: whoever waits for it is to be cancelled with
        the node.
        """

        def post(loop: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
            with suppress(RuntimeError):
                loop.result().call_soon_threadsafe(command)

        self._running_loop.add_done_callback(post)

    async def run(self, work: Callable[[], T]) -> T:
        """Runs `work` on the thread's loop, and gives what it gives; for another loop's thread."""
        bridge = ThreadBridge[T]()
        self.call(lambda: bridge.run(work))
        return await bridge.result

    async def _until_stopped(self) -> None:
        self._running_loop.set_result(asyncio.get_running_loop())
        if not self.stopping:
            await race(self.main(), self._ended.wait())
