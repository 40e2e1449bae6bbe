"""The client of a job's fork server, see `fork_server`.

An order is a JSON object in one message, `{"request", "arguments", "environment", "folder"}`, with the
descriptors of standard input, output and error. The answers are `{"request", "pid"}` with a descriptor of the
process, or `{"request", "refused"}`; and when the process has ended `{"request", "code"}`.
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
from collections.abc import Mapping, Sequence
from typing import Any

from ...pipeline.errors import ClusterError
from ..runtime.entry_points import FORK_SERVER, python
from ..runtime.process_title import room
from .fork_server import MESSAGE_BYTES
from .starter import ONE_THREAD, Started

END_SECONDS = 5.0

log = logging.getLogger(__name__)


def open_server(
    environment: Mapping[str, str], *options: str
) -> tuple[subprocess.Popen[bytes], socket.socket, socket.socket]:
    """Starts a server; gives its process, the socket of the part without torch, and that of the other."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    theirs = [pair[1] for pair in pairs]
    process = subprocess.Popen(
        python(FORK_SERVER, *(str(end.fileno()) for end in theirs), *options, room()),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=dict(environment),
        pass_fds=[end.fileno() for end in theirs],
    )
    for end in theirs:
        end.close()
    return process, pairs[0][0], pairs[1][0]


def send_order(
    server: socket.socket,
    request: int,
    arguments: Sequence[str],
    streams: Sequence[int],
    *,
    environment: Mapping[str, str] | None = None,
    folder: str = "",
) -> None:
    """Orders a process; `streams` become its standard input, output and error."""
    order = {
        "request": request,
        "arguments": list(arguments),
        "environment": dict(environment or {}),
        "folder": folder,
    }
    socket.send_fds(server, [json.dumps(order).encode()], streams)


def receive_answer(server: socket.socket) -> tuple[dict[str, Any], int | None] | None:
    """One answer, and the descriptor of a process if one has started; None where the server has ended."""
    try:
        message, descriptors, _, _ = socket.recv_fds(server, MESSAGE_BYTES, 1)
    except ConnectionResetError:
        return None
    if not message:
        return None
    return json.loads(message), descriptors[0] if descriptors else None


class _Forked:
    """A forked process; `process` is its descriptor, with which no other one is ever signalled."""

    def __init__(
        self,
        pid: int,
        process: int,
        given: int,
        output: asyncio.StreamReader,
        transport: asyncio.ReadTransport,
    ) -> None:
        self.pid = pid
        self.output = output
        self._transport = transport
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._process = process
        self._input = given

    def signal(self, number: int) -> None:
        if not self.code.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, number)

    def close(self) -> None:
        given, self._input = self._input, -1
        if given >= 0:
            os.close(given)
        self._transport.close()

    async def wait(self) -> int:
        return await asyncio.shield(self.code)

    def ended(self, code: int) -> None:
        if not self.code.done():
            self.code.set_result(code)
            os.close(self._process)


class _Part:
    """One of the two serving processes, as this side sees it."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._answers: dict[int, asyncio.Future[tuple[int, int]]] = {}
        self._processes: dict[int, _Forked] = {}
        self._codes: dict[int, int] = {}
        # The one that watches the socket.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gone = False

    async def start(self, arguments: Sequence[str]) -> _Forked:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            loop.add_reader(self._server, self._receive)
            self._loop = loop
        request = len(self._answers)
        answer = self._answers[request] = loop.create_future()
        their_input, our_input = os.pipe()
        our_output, their_output = os.pipe()
        output = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(our_output, "rb", buffering=0)
        )
        try:
            if self._gone:
                raise ClusterError("the fork server is gone")
            send_order(self._server, request, arguments, (their_input, their_output, their_output))
            pid, process = await answer
        except (ClusterError, OSError, asyncio.CancelledError) as error:
            os.close(our_input)
            transport.close()
            if isinstance(error, OSError):
                raise ClusterError(f"the fork server is gone ({error.strerror})") from error
            raise
        finally:
            os.close(their_input)
            os.close(their_output)
        forked = self._processes[request] = _Forked(pid, process, our_input, output, transport)
        if request in self._codes:
            forked.ended(self._codes[request])
        return forked

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._server)
        self._server.close()

    def _receive(self) -> None:
        answer = receive_answer(self._server)
        if answer is None:
            self._lose()
            return
        body, process = answer
        request = int(body["request"])
        if "code" in body:
            self._codes[request] = int(body["code"])
            if request in self._processes:
                self._processes[request].ended(self._codes[request])
        elif process is None:
            self._answers[request].set_exception(ClusterError(f"cannot be forked: {body['refused']}"))
        elif self._answers[request].done():
            # Whoever asked for it was cancelled; the end of its input tells it.
            os.close(process)
        else:
            self._answers[request].set_result((int(body["pid"]), process))

    def _lose(self) -> None:
        """Nobody could tell how its processes end: they are killed."""
        assert self._loop is not None
        self._loop.remove_reader(self._server)
        self._gone = True
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ClusterError("the fork server is gone"))
        for process in self._processes.values():
            if not process.code.done():
                log.error("the fork server is gone; process %d is killed", process.pid)
                process.signal(signal.SIGKILL)
                process.ended(-signal.SIGKILL)


class ForkStarter:
    """Processes are forked from a server, which is started here and imports from now on."""

    def __init__(self) -> None:
        self._process, light, torch = open_server(os.environ | ONE_THREAD)
        self._light, self._torch = _Part(light), _Part(torch)

    async def start(self, arguments: Sequence[str], *, torch: bool) -> Started:
        """See `Starter`."""
        return await (self._torch if torch else self._light).start(arguments)

    def close(self) -> None:
        """See `Starter`."""
        self._light.close()
        self._torch.close()
        try:
            # At most as long as it imports: it sees only then that nobody is there.
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
