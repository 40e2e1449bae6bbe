"""A node, or the coordinator, as threads of the test's own process, and which of them a thread is one of."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import zmq
from shadowsync.nodes.coordinator.ledger.store import LedgerStore, LedgerWriter
from shadowsync.nodes.coordinator.main import run_coordinator
from shadowsync.nodes.launch import make_role
from shadowsync.nodes.runtime.main_loop import run_pause_aware
from shadowsync.nodes.runtime.node import Node
from shadowsync.nodes.runtime.process import JsonLines, ProcessHooks
from shadowsync.nodes.runtime.settings import NodeSettings
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import ExitCode, ShadowSyncError
from shadowsync.pipeline.report.document import Report

from .processes import ENOUGH_SECONDS

HEARTBEAT_SECONDS = 0.05
KILLED = -9
# Until nobody is left to close a killed node's sockets: its threads end within seconds.
LEFT_SECONDS = 30.0

_CURRENT: contextvars.ContextVar[InProcess | None] = contextvars.ContextVar("node", default=None)


def _of_a_kill(record: logging.LogRecord) -> bool:
    """Whether a record is of a message that a killed node did not send: nobody is left to hear of it."""
    error = record.exc_info[1] if record.exc_info else None
    # Of a new socket it is no ContextTerminated.
    return isinstance(error, zmq.ZMQError) and error.errno == zmq.ETERM


logging.getLogger("asyncio").addFilter(lambda record: not _of_a_kill(record))


def current_node() -> InProcess | None:
    """The node that this thread works for; None for the test's own threads."""
    return _CURRENT.get()


@contextmanager
def threads_know_their_node() -> Iterator[None]:
    """Within it a thread has the context of the one that starts it, as from Python 3.14 on it may have."""
    start = threading.Thread.start

    def start_in_context(self: threading.Thread) -> None:
        context, run = contextvars.copy_context(), self.run
        self.run = lambda: context.run(run)  # type: ignore[method-assign]
        start(self)

    with mock.patch.object(threading.Thread, "start", start_in_context):
        yield


@contextmanager
def the_killed_write_nothing() -> Iterator[None]:
    """Within it a killed coordinator's ledger gets nothing more, but is closed: its thread goes on here."""
    submit = LedgerWriter.submit

    def submit_while_alive(
        self: LedgerWriter, work: Callable[[LedgerStore], Any], failed: Any = None
    ) -> asyncio.Future[Any]:
        node = current_node()
        if node is None or not node.killed or work is LedgerStore.close:
            return submit(self, work, failed)
        never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        never.cancel()
        return never

    with mock.patch.object(LedgerWriter, "submit", submit_while_alive):
        yield


@contextmanager
def nodes_can_stand_still() -> Iterator[None]:
    """Within it the threads of a suspended node wait where they have been waiting for something to do."""
    poll, process_events = zmq.Poller.poll, BaseSelectorEventLoop._process_events  # type: ignore[attr-defined]

    def stand_still() -> None:
        node = current_node()
        if node is not None:
            node.going.wait()

    def poll_and_stand(self: zmq.Poller, timeout: int | None = None) -> list[tuple[Any, int]]:
        found: list[tuple[Any, int]] = poll(self, timeout)
        stand_still()
        return found

    def stand_and_process(self: BaseSelectorEventLoop, events: Any) -> None:
        stand_still()
        process_events(self, events)

    with (
        mock.patch.object(zmq.Poller, "poll", poll_and_stand),
        mock.patch.object(BaseSelectorEventLoop, "_process_events", stand_and_process),
    ):
        yield


def _stacks() -> str:
    """Where every thread of this process is, by name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()
    return "\n".join(
        f"--- {names.get(ident)}\n{''.join(traceback.format_stack(frame))}" for ident, frame in frames
    )


def _await_stack(task: asyncio.Task[Any]) -> str:
    """What a task awaits, through all coroutines that it is in."""
    found, waits = [task.get_name()], task.get_coro()
    while waits is not None and (frame := getattr(waits, "cr_frame", None)) is not None:
        found.append(f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
        waits = waits.cr_await  # type: ignore[union-attr]
    return "\n".join(found)


class _Socket(zmq.Socket[bytes]):
    """Sends nothing from the kill on.

    ZeroMQ ends the sockets of a context one after the other: a thread that notices the end of one could tell
    of it over another.
    """

    def send(self, *given: Any, **more: Any) -> Any:
        """As a socket of a context that was terminated, once this one is being so."""
        if isinstance(self.context, Context) and self.context.is_cut:
            raise zmq.ContextTerminated
        return super().send(*given, **more)


class Context(zmq.Context[zmq.Socket[bytes]]):
    """A node's context, which a kill may terminate while the node does so too.

    Attributes:
        is_cut: whether the kill has begun.
    """

    _socket_class = _Socket
    is_cut: bool
    _once: threading.Lock
    _over: threading.Event

    def __init__(self) -> None:
        super().__init__(io_threads=1)
        self.is_cut = False
        self._once = threading.Lock()
        self._over = threading.Event()

    def open_sockets(self) -> list[str]:
        """Those that keep it from being terminated."""
        return [repr(socket) for socket in tuple(self._sockets) if not socket.closed]

    def term(self) -> None:
        """Terminate once; whoever comes second waits for the first.

        That is a killed node, which is through. As in a process that is killed, its sockets end with it: also
        one that was being made in that instant, and that nobody has to close.
        """
        if self._once.acquire(blocking=False):
            super().term()
            self._over.set()
        elif not self._over.wait(LEFT_SECONDS):
            for socket in tuple(self._sockets):
                socket.close(linger=0)
            self._over.wait()

    def cut(self) -> None:
        """Terminate on a thread of its own.

        Nothing is sent any more, and from its return on nothing is received.
        """
        self.is_cut = True
        try:
            probe = self.socket(zmq.PAIR)
        except zmq.ZMQError:
            # The node is terminating it by itself, or has.
            return
        threading.Thread(target=self.term, name="terminates", daemon=True).start()
        with suppress(zmq.ContextTerminated), probe:
            while True:
                probe.poll(1)


class InProcess(ABC, ProcessHooks):
    """A control loop on a thread of its own, with a context of its own, and what the two start.

    The context is what makes a kill abrupt: terminated, no socket of the node sends or receives any more,
    whatever its threads are doing. So nodes talk over `ipc`, as those of one machine do: `inproc` would need
    one context for all of them.

    Attributes:
        name: "coordinator", or what the coordinator calls the node; "" until it has joined.
        code: the exit code, KILLED after `kill`; None while it runs.
        going: cleared while it is suspended.
        on_killed: called, on whichever thread, when it has been killed.
    """

    heartbeat_seconds = HEARTBEAT_SECONDS

    def __init__(self, role: str, settings: NodeSettings) -> None:
        self.role, self.settings = role, settings
        self.name = ""
        self.code: int | None = None
        self.going = threading.Event()
        self.going.set()
        self.on_killed: Callable[[InProcess], None] = lambda _: None
        self._text = ""
        self._killed = False
        self._interrupted: Callable[[], None] | None = None
        self._terminated: Callable[[], None] | None = None
        self._log: logging.Handler | None = None
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{role} control", daemon=True)

    @abstractmethod
    async def main(self) -> tuple[ExitCode, str]:
        """The node's whole life."""

    def start(self) -> None:
        self._context = Context()
        self._thread.start()

    @property
    def killed(self) -> bool:
        return self._killed

    @property
    def pid(self) -> int:
        """That of the process that it shares."""
        return os.getpid()

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return None if self._thread.is_alive() else self.code

    def wait(self, seconds: float = ENOUGH_SECONDS) -> int:
        """Wait for the end; gives the exit code."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            sockets = "\n".join(self._context.open_sockets())
            what = f"{self.name or self.role} goes on after {seconds:g} s"
            tasks = "\n".join(map(_await_stack, asyncio.all_tasks(self._loop)))
            raise AssertionError(
                f"{what}:\n--- its open sockets\n{sockets}\n--- its tasks\n{tasks}\n{_stacks()}"
            )
        assert self.code is not None
        return self.code

    def text(self) -> str:
        """Why it ended, in one line, as it would write to standard error."""
        return f"shadowsync {self.role}: {self._text}" if self._text else ""

    def interrupt(self) -> None:
        """Ask it to stop the job, as SIGINT asks a process."""
        self._running.wait()
        assert self._interrupted is not None
        self._loop.call_soon_threadsafe(self._interrupted)

    def terminate(self) -> None:
        """Ask it to end, as SIGTERM asks a process."""
        self._running.wait()
        assert self._terminated is not None
        self._loop.call_soon_threadsafe(self._terminated)

    def suspend(self) -> None:
        """Let it stand still, as SIGSTOP does: no thread of it takes up anything new, or answers."""
        self.going.clear()

    def resume(self) -> None:
        """Let it go on, as SIGCONT does."""
        self.going.set()

    def kill(self) -> None:
        """End it as SIGKILL does: from now on nothing of it is sent. Any thread may call."""
        self._running.wait()
        if self._killed or not self._thread.is_alive():
            return
        self._killed = True
        self._context.cut()
        self.going.set()
        # Its loop is closed if it has ended by itself, without its context.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._task.cancel)
        self.on_killed(self)

    def zmq_context(self, job: Job) -> zmq.Context[zmq.Socket[bytes]]:  # noqa: ARG002
        return self._context

    def on_interrupt(
        self,
        loop: asyncio.AbstractEventLoop,
        interrupted: Callable[[], None],
        terminated: Callable[[], None] | None = None,
    ) -> None:
        """See `ProcessHooks`: `interrupt` and `terminate` are what asks."""
        del loop
        self._interrupted, self._terminated = interrupted, terminated or interrupted

    def on_orphaned(self, loop: asyncio.AbstractEventLoop, orphaned: Callable[[], None]) -> None:
        """See `ProcessHooks`: there is no supervisor whose death could be missed."""

    def log_to(self, folder: str | Path, name: str) -> None:
        """See `ProcessHooks`: what the node's own threads log goes to its file."""
        self.name = name
        path = Path(folder) / "logs" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._close_log()
        self._log = logging.FileHandler(path, encoding="utf-8")
        self._log.setFormatter(JsonLines())
        self._log.addFilter(lambda _: current_node() is self)
        logging.getLogger().addHandler(self._log)

    def _close_log(self) -> None:
        if self._log is not None:
            logging.getLogger().removeHandler(self._log)
            self._log.close()

    def _run(self) -> None:
        _CURRENT.set(self)
        try:
            code, self._text = run_pause_aware(self._noted())
            self.code = int(code)
        except ShadowSyncError as error:
            self.code, self._text = int(error.exit_code), str(error)
        except BaseException:
            # Without its context whatever it was doing fails.
            if not self._killed:
                raise
            self.code = KILLED
        finally:
            self._context.term()
            self._close_log()

    async def _noted(self) -> tuple[ExitCode, str]:
        task = asyncio.current_task()
        assert task is not None
        self._loop, self._task = asyncio.get_running_loop(), task
        self._running.set()
        return await self.main()


class InProcessNode(InProcess):
    """A reader, trainer, embedding or sync node."""

    async def main(self) -> tuple[ExitCode, str]:
        node = Node(make_role(self.role, self.settings.job), self.settings, self)
        code = await node.run()
        return code, node.exit_text


class InProcessCoordinator(InProcess):
    """The coordinator.

    Attributes:
        report: what it wrote, once it has ended.
    """

    def __init__(self, settings: NodeSettings) -> None:
        super().__init__("coordinator", settings)
        self.report: Report | None = None

    async def main(self) -> tuple[ExitCode, str]:
        code, text, self.report = await run_coordinator(self.settings, self)
        return code, text
