"""The fork server of a test session, from which all of its tests' processes are forked."""

from __future__ import annotations

import itertools
import os
import select
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from shadowsync.nodes.supervisor.starter import open_server, receive_reply, send_request

from . import warm_job

# What processes without torch, and those with it, import beyond what a job's server imports: what Arrow looks
# for as soon as it reads, and what the optimizers of torch do as they are made.
MORE = ("pandas", "numpy.random"), ("torch._dynamo", "numpy.random", "shadowsync.attached.attach")


@dataclass
class WarmServers:
    """Fork servers for a command.

    Attributes:
        pids: of their processes, two each.
        given: the pid of the part without torch, and the sockets of both.
    """

    pids: list[int] = field(default_factory=list)
    given: list[tuple[int, socket.socket, socket.socket]] = field(default_factory=list)


class WarmServer:
    """The product's fork server, one for a whole test session, and one that it forked, which imports more.

    It kills what it has forked when pytest is gone, however that ended. One thread.

    Attributes:
        pids: its four processes, which stay.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._codes: dict[int, int] = {}
        self._requests = itertools.count()
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door.bind("")
        self._door.listen()
        self._door.settimeout(120.0)
        # It kills nobody: what it forks ends with its own connection, and first kills what it forked itself.
        self._popen, *first = open_server(environment)
        self._light, self._torch = first
        inner = self.start_servers(1, Path.cwd(), Path(os.devnull))
        self._inner = [psutil.Process(pid) for pid in inner.pids]
        ((_, *self._ends),) = inner.given
        for end, imports in zip(self._ends, MORE, strict=True):
            warm_job.begin_server(end, environment, imports=imports, kill_at_end=True)
        self._ends += first
        self._light, self._torch, *_ = self._ends
        server = psutil.Process(self._popen.pid)
        self.pids = {server.pid, *(process.pid for process in server.children(recursive=True))}

    @property
    def address(self) -> str:
        """Where a `warm_job` connects to."""
        return bytes(self._door.getsockname()).hex()

    def start(self, order: dict[str, Any], log: Path, *, torch: bool) -> tuple[int, int, socket.socket]:
        """Forks a process that writes to a file; gives its number, that of the request, and who was asked."""
        server = self._torch if torch else self._light
        request = next(self._requests)
        with open(os.devnull, "rb") as nothing, log.open("ab") as file:
            streams = (nothing.fileno(), file.fileno(), file.fileno())
            send_request(server, request, **order, streams=streams)
        while True:
            body = self._hear(server)
            if body["request"] == request:
                return int(body["pid"]), request, server

    def start_servers(self, count: int, folder: Path, log: Path) -> WarmServers:
        """Forks servers that have done their imports."""
        order = {"arguments": ["-m", warm_job.__name__, self.address, warm_job.SERVE], "folder": str(folder)}
        servers = WarmServers()
        for _ in range(count):
            pids, ends = [], []
            for torch in (False, True):
                pids.append(self.start(order, log, torch=torch)[0])
                ends.append(self._door.accept()[0])
            servers.pids += pids
            servers.given.append((pids[0], ends[0], ends[1]))
        return servers

    def give(self, servers: WarmServers) -> None:
        """Hands servers over to the command that was just started."""
        command, _ = self._door.accept()
        with command:
            warm_job.give_servers(command, servers.given)
        for _, *ends in servers.given:
            for end in ends:
                end.close()

    def code(self, request: int, server: socket.socket) -> int | None:
        """How the process of a request ended; None while it runs."""
        while request not in self._codes and select.select([server], [], [], 0)[0]:
            self._hear(server)
        return self._codes.get(request)

    def close(self) -> None:
        """Ends it, from the inside."""
        self._door.close()
        for end in self._ends[:2]:
            end.close()
        psutil.wait_procs(self._inner, timeout=60.0)
        for end in self._ends[2:]:
            end.close()
        self._popen.wait(60)

    def _hear(self, server: socket.socket) -> dict[str, Any]:
        reply = receive_reply(server)
        assert reply is not None, "the fork server has ended"
        body, process = reply
        if process is not None:
            os.close(process)
        assert "refused" not in body, body
        if "code" in body:
            self._codes[int(body["request"])] = int(body["code"])
        return body
