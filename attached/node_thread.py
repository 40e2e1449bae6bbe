"""A node as a thread of a process that is not the node's own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..nodes.runtime.main_loop import run_pause_aware
from ..nodes.runtime.node import Node
from ..nodes.runtime.process import ProcessHooks
from ..nodes.runtime.role import Role
from ..nodes.runtime.settings import NodeSettings
from ..pipeline.errors import ExitCode

R = TypeVar("R", bound=Role)
T = TypeVar("T")


def await_first(*futures: concurrent.futures.Future[Any]) -> None:
    """Return when one of these is done; not for the thread of a loop."""
    concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_COMPLETED)


def _cancel(future: concurrent.futures.Future[Any]) -> None:
    future.cancel()
    # Without this, who waits for it with `concurrent.futures.wait` would wait on.
    future.set_running_or_notify_cancel()


def _copy_result(task: asyncio.Task[T], future: concurrent.futures.Future[T]) -> None:
    if task.cancelled():
        # A future that runs cannot be cancelled.
        future.set_exception(concurrent.futures.CancelledError())
    elif (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())


class ThreadHooks(ProcessHooks):
    """Hooks of a node that shares its process: signals and logs are the user's."""

    def on_interrupt(
        self,
        loop: asyncio.AbstractEventLoop,
        interrupted: Callable[[], None],
        terminated: Callable[[], None] | None = None,
    ) -> None:
        """See `ProcessHooks`: the process handles its own signals."""

    def on_orphaned(self, loop: asyncio.AbstractEventLoop, orphaned: Callable[[], None]) -> None:
        """See `ProcessHooks`: there is no supervisor."""

    def health_path(self, *, supervised: bool) -> None:
        """See `ProcessHooks`: several nodes may share the process."""

    def log_to(self, folder: str | Path, name: str) -> None:
        """See `ProcessHooks`: log records go where the process sends them."""


class NodeThread(Generic[R]):
    """The control thread of a node, with its loop; it ends with the process.

    Args:
        make_role: makes the role, on the thread's loop.

    Attributes:
        ended: exit code and text, or the error that ended the node.
    """

    def __init__(
        self,
        make_role: Callable[[], R],
        settings: NodeSettings,
        name: str,
    ) -> None:
        self._make_role, self._settings = make_role, settings
        self._started: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, Node, R]] = (
            concurrent.futures.Future()
        )
        self.ended: concurrent.futures.Future[tuple[ExitCode, str]] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        # A coroutine made for a loop that ends meanwhile would never be awaited, so the loop makes it.
        self._lock, self._takes_work = threading.Lock(), True
        self._waiting: set[concurrent.futures.Future[Any]] = set()

    def start(self) -> R:
        """Start the node; return its role once the loop runs.

        Raises what making the role raises.
        """
        self._thread.start()
        await_first(self._started, self.ended)
        if not self._started.done():
            self.ended.result()
        return self._started.result()[2]

    @property
    def role(self) -> R:
        """The role, once `start` has returned."""
        return self._started.result()[2]

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the node's loop; any thread may call.

        `work` is called on the loop. The future raises CancelledError if the loop ends first.
        """
        loop = self._started.result()[0]
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def begin() -> None:
            if future not in self._waiting:
                return
            self._waiting.remove(future)
            if future.set_running_or_notify_cancel():
                loop.create_task(work()).add_done_callback(lambda task: _copy_result(task, future))

        with self._lock:
            if self._takes_work:
                self._waiting.add(future)
                loop.call_soon_threadsafe(begin)
            else:
                _cancel(future)
        return future

    def fail(self, error: BaseException) -> None:
        """End the node with an error; any thread may call."""
        self._started.result()[1].fail(error)

    def end(self, text: str) -> None:
        """End the node, which nobody will tell to; any thread may call."""
        self._started.add_done_callback(lambda started: started.result()[1].end(text))

    def join(self, seconds: float) -> bool:
        """Wait for the thread; return whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.ended.set_result(run_pause_aware(self._main()))
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            self.ended.set_exception(error)

    async def _main(self) -> tuple[ExitCode, str]:
        role = self._make_role()
        node = Node(role, self._settings, ThreadHooks())
        self._started.set_result((asyncio.get_running_loop(), node, role))
        try:
            return await node.run(), node.exit_text
        finally:
            self._take_no_more()

    def _take_no_more(self) -> None:
        with self._lock:
            self._takes_work = False
            waiting, self._waiting = self._waiting, set()
        for future in waiting:
            _cancel(future)
