"""Threads that own sockets, and the bridge from a thread to a loop."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

import zmq

from ...pipeline.errors import ClusterError
from ...pipeline.wire.sockets import Listener, Waker
from ...pipeline.wire.tasks import post
from .message_handler import MessageHandler

POLL_MILLISECONDS = 200

log = logging.getLogger(__name__)


class Service(ABC):
    """One thread with a waker.

    `body` runs on it and returns when `stopping` is set.

    Args:
        name: the thread's name.
        failed: called on the thread with the exception that ends it; the node fails with it.
    """

    def __init__(self, name: str, failed: Callable[[BaseException], None]) -> None:
        self.waker = Waker()
        self._stop = threading.Event()
        self._failed = failed
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopping(self) -> bool:
        """Whether the thread should return soon."""
        return self._stop.is_set()

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Tell the thread to return; any thread may call."""
        self._stop.set()
        self.waker.wake()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread; return whether it has returned, or never ran."""
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            return False
        # The waker of a thread that never ran.
        self.waker.close()
        return True

    @abstractmethod
    def body(self) -> None:
        """Do the thread's work."""

    def _run(self) -> None:
        try:
            self.body()
        except Exception as error:  # noqa: BLE001 - whatever it is, the node fails with it
            self._failed(error)
        finally:
            # Closed here, since nobody joins a thread that outlives its node's patience.
            self.waker.close()
            log.debug("thread %s ends", threading.current_thread().name)


T = TypeVar("T")


class ThreadBridge(Generic[T]):
    """A result handed from a thread to the loop that made this object.

    Any thread may call `give`, `fail` and `run`. Results that nobody awaits any more are dropped.

    Attributes:
        result: to be awaited on the loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.result: asyncio.Future[T] = self._loop.create_future()

    def give(self, result: T) -> None:
        self._on_loop(lambda: self.result.set_result(result))

    def fail(self, error: BaseException) -> None:
        """Give an exception to raise instead of a result."""
        self._on_loop(lambda: self.result.set_exception(error))

    def run(self, work: Callable[[], T]) -> None:
        """Run `work` here and give its result, or its exception."""
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            self.fail(error)
        else:
            self.give(result)

    def _on_loop(self, finish_taken: Callable[[], None]) -> None:
        def if_awaited() -> None:
            if not self.result.done():
                finish_taken()

        post(self._loop, if_awaited)


class CommandedService(Service):
    """A thread on which other threads can run work."""

    @abstractmethod
    def call(self, command: Callable[[], object]) -> None:
        """Have `command` run on this thread; any thread may call.

        If the thread ends first, `command` never runs: its waiters must be cancelled with the node.
        """

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on this thread and return its result; for another thread's loop."""
        bridge = ThreadBridge[T]()
        self.call(lambda: bridge.run(work))
        return await bridge.result

    def run_blocking(self, work: Callable[[], T]) -> T:
        """Run `work` on this thread and return its result; for another thread, which waits.

        Raises ClusterError if this thread ends first.
        """
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(work())
            except Exception as error:  # noqa: BLE001 - raised where the result is awaited
                result.set_exception(error)

        self.call(run)
        while True:
            try:
                return result.result(POLL_MILLISECONDS / 1000)
            except TimeoutError:
                if result.done():
                    # It came just now, or `work` itself raised this error.
                    return result.result()
                # An ended thread never runs the commands left in its queue.
                if not self.is_alive:
                    raise ClusterError(f"the thread {self._thread.name!r} ended before its work") from None


class ListeningService(MessageHandler, CommandedService):
    """A service that handles messages in order, and commands between them.

    Use it for work that blocks its thread; for other work use `ListeningLoop`.

    Args:
        listener: the bound socket; owned by this thread from `start` on, and closed at its end.
    """

    def __init__(self, name: str, listener: Listener, failed: Callable[[BaseException], None]) -> None:
        MessageHandler.__init__(self, listener)
        Service.__init__(self, name, failed)
        self._commands: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()

    def call(self, command: Callable[[], object]) -> None:
        """Have `command` run between two messages; see `CommandedService.call`."""
        self._commands.put(command)
        self.waker.wake()

    def body(self) -> None:
        """Serve until told to stop, then close the socket."""
        poller = zmq.Poller()
        poller.register(self.listener.socket, zmq.POLLIN)
        poller.register(self.waker.fileno(), zmq.POLLIN)
        waker_only = zmq.Poller()
        waker_only.register(self.waker.fileno(), zmq.POLLIN)
        try:
            while not self.stopping:
                (poller if self.takes_more() else waker_only).poll(POLL_MILLISECONDS)
                woken_at = time.monotonic()
                self.waker.clear()
                while not self._commands.empty():
                    self.finish_taken()
                    # Taken work is then unfinished, and a command would see half-changed rows.
                    if self.stopping:
                        break
                    self._commands.get()()
                self._take(woken_at)
        finally:
            self.listener.close()

    def finish_taken(self) -> None:
        """Finish taken work before a command runs, unless the thread is `stopping`."""
