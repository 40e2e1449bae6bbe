"""Start of a job's processes: forked from a fork server, or spawned.

`ForkStarter` is the client of a job's `fork_server`. A request is a JSON object in one message, `{"request",
"arguments", "environment", "folder"}`, with the descriptors of standard input, output and error. The answer
is `{"request", "pid"}` with a descriptor of the process, or `{"request", "refused"}`. When the process has
ended, `{"request", "code"}` follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...pipeline.errors import ClusterError, JobFileError, ShadowSyncError
from ...pipeline.open_files import files_error, too_many_files
from ..runtime.process import FORK_SERVER, ONE_THREAD, command_line_room, interpreter, python
from .fork_server import MESSAGE_BYTES

METHOD_VARIABLE = "SHADOWSYNC_START_METHOD"
METHODS = ("forkserver", "spawn")
# A server that has done its imports ends at once.
END_SECONDS = 0.3
# A killed one ends when the machine has freed its memory.
KILLED_SECONDS = 5.0


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
    # Forking after imports is safe on Linux alone, and so are descriptors of processes there.
    able = sys.platform == "linux" and hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")
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


log = logging.getLogger(__name__)


def open_server(
    environment: Mapping[str, str],
) -> tuple[subprocess.Popen[bytes], socket.socket, socket.socket]:
    """Start a server.

    Return its process, the socket of the part without torch, and the other's.
    """
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    theirs = [pair[1] for pair in pairs]
    process = subprocess.Popen(
        python(FORK_SERVER, *(str(end.fileno()) for end in theirs), command_line_room()),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=dict(environment),
        pass_fds=[end.fileno() for end in theirs],
    )
    for end in theirs:
        end.close()
    return process, pairs[0][0], pairs[1][0]


def send_request(
    server: socket.socket,
    request: int,
    arguments: Sequence[str],
    streams: Sequence[int],
    *,
    environment: Mapping[str, str] | None = None,
    folder: str = "",
) -> None:
    """Request a process; `streams` become its standard input, output and error."""
    body = {
        "request": request,
        "arguments": list(arguments),
        "environment": dict(environment or {}),
        "folder": folder,
    }
    socket.send_fds(server, [json.dumps(body).encode()], streams)


def receive_reply(server: socket.socket) -> tuple[dict[str, Any], int | None] | None:
    """Receive an answer and a descriptor; None if the server has ended.

    The descriptor is a started process's.
    """
    try:
        message, descriptors, _, _ = socket.recv_fds(server, MESSAGE_BYTES, 1)
    except ConnectionResetError:
        return None
    if not message:
        return None
    return json.loads(message), descriptors[0] if descriptors else None


class _ForkedProcess:
    """A forked process.

    `process` is its descriptor, so that no other process is ever signalled.
    """

    def __init__(
        self,
        pid: int,
        process: int,
        their_stdin: int,
        output: asyncio.StreamReader,
        transport: asyncio.ReadTransport,
    ) -> None:
        self.pid = pid
        self.output = output
        self._transport = transport
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._process = process
        self._input = their_stdin

    def signal(self, number: int) -> None:
        if not self.code.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, number)

    def close(self) -> None:
        descriptor, self._input = self._input, -1
        if descriptor >= 0:
            os.close(descriptor)
        self._transport.close()

    async def wait(self) -> int:
        return await asyncio.shield(self.code)

    def ended(self, code: int) -> None:
        if not self.code.done():
            self.code.set_result(code)
            os.close(self._process)


class _ServerConnection:
    """The connection to one of the two serving processes."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._replies: dict[int, asyncio.Future[tuple[int, int]]] = {}
        self._processes: dict[int, _ForkedProcess] = {}
        self._codes: dict[int, int] = {}
        # The loop that watches the socket.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server_lost = False

    async def start(self, arguments: Sequence[str]) -> _ForkedProcess:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            loop.add_reader(self._server, self._receive)
            self._loop = loop
        request = len(self._replies)
        reply = self._replies[request] = loop.create_future()
        their_input, our_input = os.pipe()
        try:
            our_output, their_output = os.pipe()
        except OSError:
            os.close(their_input)
            os.close(our_input)
            raise
        output = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(our_output, "rb", buffering=0)
        )
        try:
            if self._server_lost:
                raise _server_ended()
            send_request(self._server, request, arguments, (their_input, their_output, their_output))
            pid, process = await reply
        except (ShadowSyncError, OSError, asyncio.CancelledError) as error:
            os.close(our_input)
            transport.close()
            if (named := too_many_files(error)) is not None:
                raise named from error
            if isinstance(error, OSError):
                raise _server_ended(f" ({error.strerror})") from error
            raise
        finally:
            os.close(their_input)
            os.close(their_output)
        forked = self._processes[request] = _ForkedProcess(pid, process, our_input, output, transport)
        if request in self._codes:
            forked.ended(self._codes[request])
        return forked

    def shut_down(self) -> None:
        """Tell the server to end, and read nothing more."""
        if self._loop is not None:
            self._loop.remove_reader(self._server)
        with contextlib.suppress(OSError):
            # If it is not connected any more, it has ended already.
            self._server.shutdown(socket.SHUT_WR)

    def wait_ended(self) -> None:
        """Wait up to KILLED_SECONDS for the end of a server that was killed."""
        self._server.settimeout(KILLED_SECONDS)
        with contextlib.suppress(ConnectionResetError, TimeoutError):
            # Only the server has the other end; what it answered meanwhile is for nobody.
            while self._server.recv(1):
                continue

    def close(self) -> None:
        self._server.close()

    def _receive(self) -> None:
        reply = receive_reply(self._server)
        if reply is None:
            self._lose()
            return
        body, process = reply
        request = int(body["request"])
        if "code" in body:
            self._codes[request] = int(body["code"])
            if request in self._processes:
                self._processes[request].ended(self._codes[request])
        elif "refused" in body:
            self._replies[request].set_exception(ClusterError(f"cannot be forked: {body['refused']}"))
        elif process is None:
            # There was no room for its descriptor here. It ends, as its input does.
            self._replies[request].set_exception(files_error())
        elif self._replies[request].done():
            # The caller was cancelled; the process ends when its input does.
            os.close(process)
        else:
            self._replies[request].set_result((int(body["pid"]), process))

    def _lose(self) -> None:
        """Kill the processes of a lost server, as nothing could report their end."""
        assert self._loop is not None
        self._loop.remove_reader(self._server)
        self._server_lost = True
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(_server_ended())
        for process in self._processes.values():
            if not process.code.done():
                log.error("the fork server has ended; killing process %d", process.pid)
                process.signal(signal.SIGKILL)
                process.ended(-signal.SIGKILL)


def _server_ended(why: str = "") -> ClusterError:
    return ClusterError(
        f"the fork server has ended{why}",
        remedy="it was killed, perhaps for want of memory; start the job again",
    )


class ForkStarter:
    """A starter of processes that a server forks; creating it starts the server."""

    def __init__(self) -> None:
        self._process, light, torch = open_server(os.environ | ONE_THREAD)
        self._light, self._torch = _ServerConnection(light), _ServerConnection(torch)

    async def start(self, arguments: Sequence[str], *, torch: bool) -> StartedProcess:
        """Fork a process that runs `python ARGUMENTS`; see `Starter`."""
        try:
            return await (self._torch if torch else self._light).start(arguments)
        except OSError as error:
            raise too_many_files(error) or error from None

    def close(self) -> None:
        """End the fork server; none of its processes is left afterwards."""
        connections = (self._light, self._torch)
        for connection in connections:
            connection.shut_down()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            # Both of its processes still import, which may take seconds; nodes have sessions of their own.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for connection in connections:
            # The second one is no child of this process, takes its time to end, and may outlive the first.
            connection.wait_ended()
            connection.close()
