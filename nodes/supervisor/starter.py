"""Start of a job's processes: forked from a fork server, or spawned."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import forkserver
from typing import Protocol

from ...pipeline.errors import ClusterError, JobFileError
from ...pipeline.open_files import too_many_files
from ..runtime.process import CLI, FORK_SERVER, JOB_CHECK, ONE_THREAD, RELAY, interpreter
from .fork_server import ForkOrder, ForkServer, fork

METHOD_VARIABLE = "SHADOWSYNC_START_METHOD"
METHODS = ("forkserver", "spawn")
# Both servers import COMMON. LIGHT is for coordinator, readers and relay, whose server has no torch, and
# TORCH for all others.
COMMON = (
    FORK_SERVER,
    CLI,
    "shadowsync.commands.node_commands",
    "shadowsync.nodes.launch",
    "shadowsync.nodes.runtime.node",
)
LIGHT = ("shadowsync.nodes.coordinator.main", "shadowsync.nodes.reader.role", RELAY)
TORCH = (
    "shadowsync.nodes.trainer.role",
    "shadowsync.nodes.embedding.role",
    "shadowsync.nodes.sync.role",
    "shadowsync.sync_algos.catalog.registry",
    "shadowsync.pipeline.models.registry",
    JOB_CHECK,
)

log = logging.getLogger(__name__)


class StartedProcess(Protocol):
    """A process in a session of its own, whose standard input this process holds.

    Attributes:
        pid: its number.
        output: its standard output and error.
    """

    pid: int
    output: asyncio.StreamReader

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens if it has ended."""
        ...

    def close(self) -> None:
        """End its standard input and close its output; may be called again."""
        ...

    async def wait(self) -> int:
        """Wait for its end.

        Return the exit code, or minus the number of the signal that killed it.
        """
        ...


class Starter(Protocol):
    """Start processes on one asyncio loop; `close` may be called without a loop."""

    async def start(self, arguments: Sequence[str], *, torch: bool) -> StartedProcess:
        """Start `python ARGUMENTS`; `torch`: whether it will import torch.

        Raises ClusterError, and ResourceError if too many files are open.
        """
        ...

    def close(self) -> None:
        """End what the starter itself has started.

        The processes that it started for others have ended, or end by themselves.
        """
        ...


class _SpawnedProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        self._process = process
        self.pid = process.pid
        self.output = process.stdout

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def wait(self) -> int:
        return await self._process.wait()


class SpawnStarter:
    """A starter for which every process is a new interpreter."""

    async def start(self, arguments: Sequence[str], *, torch: bool) -> StartedProcess:  # noqa: ARG002
        """Start `python ARGUMENTS`; see `Starter`."""
        try:
            process = await asyncio.create_subprocess_exec(
                *interpreter(),
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | ONE_THREAD,
            )
        except OSError as error:
            raise too_many_files(error) or error from None
        return _SpawnedProcess(process)

    def close(self) -> None:
        """Do nothing: it has started nothing of its own."""


def start_method() -> str:
    """Return the method that SHADOWSYNC_START_METHOD names.

    By default "forkserver" if the system supports it, else "spawn". Raises JobFileError for another name.
    """
    # Forking after imports is safe on Linux alone.
    able = sys.platform == "linux"
    method = os.environ.get(METHOD_VARIABLE) or ("forkserver" if able else "spawn")
    if method not in METHODS or (method == "forkserver" and not able):
        raise JobFileError(
            f"{method!r} given; here it can be {' or '.join(METHODS if able else METHODS[1:])}",
            where=METHOD_VARIABLE,
            remedy="leave it unset",
        )
    return method


def make_starter() -> Starter:
    """Make this machine's starter.

    Call it early: a fork server begins to import at once.
    """
    if start_method() == "spawn":
        return SpawnStarter()

    return ForkStarter()


class _ForkedProcess:
    """A process that a fork server forks.

    Attributes:
        started: when it has its number; fails if the server ends before.
    """

    def __init__(self, status: int, output: asyncio.StreamReader, descriptors: contextlib.ExitStack) -> None:
        self.pid = 0
        self.output = output
        self._loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = self._loop.create_future()
        self._code: asyncio.Future[int] = self._loop.create_future()
        self._descriptors = descriptors
        self._loop.add_reader(status, self._receive, status)
        descriptors.callback(os.close, status)
        descriptors.callback(self._loop.remove_reader, status)

    def signal(self, number: int) -> None:
        if not self._code.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def close(self) -> None:
        self._descriptors.close()

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    def _receive(self, status: int) -> None:
        try:
            number = forkserver.read_signed(status)
        except EOFError:
            self._loop.remove_reader(status)
            self._lose()
            return
        if not self.pid:
            self.pid = number
            if not self.started.done():
                self.started.set_result(None)
        else:
            self._loop.remove_reader(status)
            self._code.set_result(number)

    def _lose(self) -> None:
        """Kill it: its server is lost, so nothing could tell of its end."""
        if self.pid:
            log.error("the fork server has ended; killing process %d", self.pid)
            self.signal(signal.SIGKILL)
            self._code.set_result(-signal.SIGKILL)
        elif not self.started.done():
            self.started.set_exception(_server_ended())


def _server_ended() -> ClusterError:
    return ClusterError(
        "the fork server has ended",
        remedy="it was killed, perhaps for want of memory; start the job again",
    )


class ForkStarter:
    """A starter of processes that servers fork; creating it starts the servers.

    Attributes:
        servers: the one without torch, and the other.
    """

    def __init__(self) -> None:
        with contextlib.ExitStack() as stack:
            environment = os.environ | ONE_THREAD
            self.servers = [
                stack.enter_context(contextlib.closing(ForkServer(modules, environment)))
                for modules in ((*COMMON, *LIGHT), (*COMMON, *TORCH))
            ]
            self._servers = stack.pop_all()

    async def start(self, arguments: Sequence[str], *, torch: bool) -> StartedProcess:
        """Fork a process that runs `python ARGUMENTS`; see `Starter`."""
        descriptors = contextlib.ExitStack()
        with contextlib.ExitStack() as failed:
            failed.callback(descriptors.close)
            try:
                process = await self._ask(self.servers[torch], ForkOrder(arguments), descriptors)
            except ConnectionError:
                raise _server_ended() from None
            except OSError as error:
                raise too_many_files(error) or error from None
            await process.started
            failed.pop_all()
        return process

    def close(self) -> None:
        """End the servers; their processes have ended, or end as their input does."""
        self._servers.close()

    async def _ask(
        self, server: ForkServer, order: ForkOrder, descriptors: contextlib.ExitStack
    ) -> _ForkedProcess:
        with contextlib.ExitStack() as theirs:
            their_input, our_input = os.pipe()
            theirs.callback(os.close, their_input)
            descriptors.callback(os.close, our_input)
            our_output, their_output = os.pipe()
            theirs.callback(os.close, their_output)
            output = asyncio.StreamReader()
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(output), os.fdopen(our_output, "rb", buffering=0)
            )
            descriptors.callback(transport.close)
            status = fork(server.address, order, (their_input, their_output, their_output))
        return _ForkedProcess(status, output, descriptors)
