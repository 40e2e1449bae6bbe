"""Asyncio services: a listener with a coroutine, a thread with a loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from ...pipeline.wire.socket_events import SocketEvents, has_message
from ...pipeline.wire.tasks import post, race
from .main_loop import run_pause_aware
from .message_handler import MessageHandler
from .threads import CommandedService

T = TypeVar("T")


class ListeningLoop(MessageHandler):
    """Service that handles messages on one loop and belongs to its thread.

    Use it for work that never blocks the loop for long; for other work use `ListeningService`.
    """

    _events: SocketEvents | None = None

    async def serve(self) -> None:
        """Serve until cancelled, then close the socket."""
        events = self._events = SocketEvents(self.listener.socket)
        try:
            while True:
                await events.changed()
                self._take(time.monotonic())
                # No event reports messages beyond one batch, or those that came during a send.
                if has_message(self.listener.socket):
                    events.wake()
        finally:
            events.close()
            self.listener.close()

    def wake(self) -> None:
        """Have `served` called after a change that it must see."""
        if self._events is not None:
            self._events.wake()


class LoopThread(CommandedService):
    """Thread that runs the coroutine `main` until `stop` cancels it."""

    def __init__(self, name: str, failed: Callable[[BaseException], None]) -> None:
        super().__init__(name, failed)
        self._running_loop: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        # A future that runs cannot be cancelled. Otherwise a caller that is cancelled while it waits would
        # cancel it for this thread and for all other callers.
        self._running_loop.set_running_or_notify_cancel()
        self._ended = asyncio.Event()
        self._is_over = False

    @abstractmethod
    async def main(self) -> None:
        """Do the thread's work, until cancelled."""

    def body(self) -> None:
        """Run `main` on a new loop."""
        run_pause_aware(self._until_stopped())

    def stop(self) -> None:
        """End the thread, wherever `main` waits; any thread may call."""
        super().stop()
        self.call(self._ended.set)

    def call(self, command: Callable[[], object]) -> None:
        """Have `command` run on the loop, once there is one.

        See `CommandedService.call`.
        """
        self._running_loop.add_done_callback(lambda loop: post(loop.result(), command))

    async def run_coroutine(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on another thread's loop, and return its result.

        A cancellation of this cancels the coroutine, and so does the thread's end. Later ones never begin.
        """
        loop = await asyncio.wrap_future(self._running_loop)
        result: concurrent.futures.Future[T] = concurrent.futures.Future()

        def begin() -> None:
            # The loop runs once more to clean up, and would not run new work.
            if self._is_over:
                result.cancel()
                return
            task = loop.create_task(work())
            task.add_done_callback(partial(_resolve, result))
            result.add_done_callback(lambda done: self.call(task.cancel) if done.cancelled() else None)

        try:
            loop.call_soon_threadsafe(begin)
        except RuntimeError:
            # The loop is closed.
            result.cancel()
        return await asyncio.wrap_future(result)

    async def _until_stopped(self) -> None:
        self._running_loop.set_result(asyncio.get_running_loop())
        try:
            # Even if it is stopped already: only `main` closes the sockets that it was given.
            await race(self.main(), self._ended.wait())
        finally:
            self._is_over = True


def _resolve(result: concurrent.futures.Future[T], task: asyncio.Task[T]) -> None:
    """Pass a task's result to a thread that waits, or has given up."""
    with suppress(concurrent.futures.InvalidStateError):
        if task.cancelled():
            result.cancel()
        elif error := task.exception():
            result.set_exception(error)
        else:
            result.set_result(task.result())
