"""A command whose fork servers are forked from the test session's, which has done its imports.

A job's own server imports for three seconds of CPU, half of what a small job takes. Arguments are the
session's address, and those of `shadowsync` or a Python script and its own, or SERVE: then it is one of the
two processes of a server, and the session has the other end of its connection. A command receives those ends.
One that starts more servers than it was given starts them itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from shadowsync.nodes.runtime.process import CLI, FORK_SERVER, show_command_line
from shadowsync.nodes.supervisor import starter
from shadowsync.nodes.supervisor.fork_server import ForkServer, become

SERVE = "--serve"
# More than any environment has.
ENVIRONMENT_BYTES = 1 << 20
MOST_SERVERS = 4


class GivenServer:
    """What `ForkStarter` needs to know of its server's process.

    Attributes:
        pid: of the one without torch.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self, seconds: float | None = None) -> int:
        """Return at once: it has no imports to finish, and its sockets tell of its end."""
        del seconds
        return 0


def give_servers(command: socket.socket, servers: list[tuple[int, socket.socket, socket.socket]]) -> None:
    """Send a command its servers: of each the pid of the part without torch, and the ends of both."""
    ends = [end.fileno() for _, *pair in servers for end in pair]
    socket.send_fds(command, [json.dumps([pid for pid, *_ in servers]).encode()], ends)


def receive_servers(session: socket.socket) -> list[tuple[int, socket.socket, socket.socket]]:
    """Receive what `give_servers` sends."""
    body, descriptors, _, _ = socket.recv_fds(session, 1 << 10, 2 * MOST_SERVERS)
    ends = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    for end in ends:
        end.set_inheritable(False)
    return list(zip(json.loads(body), ends[::2], ends[1::2], strict=True))


def begin_server(
    end: socket.socket,
    environment: Mapping[str, str],
    *,
    imports: Sequence[str] = (),
    kill_at_end: bool = False,
) -> None:
    """Have a process serve with this environment, once it has imported more; the rest as for `ForkServer`."""
    order = {"environment": dict(environment), "imports": list(imports), "kill_at_end": kill_at_end}
    end.send(json.dumps(order).encode())


def serve(control: socket.socket) -> NoReturn:
    """Serve as `begin_server` says; not at all if whoever was to say it ends."""
    show_command_line(["-m", FORK_SERVER])
    if message := control.recv(ENVIRONMENT_BYTES):
        order = json.loads(message)
        os.environ.clear()
        os.environ.update(order["environment"])
        for module in order["imports"]:
            # Not all of them are everywhere.
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        gc.collect()
        gc.freeze()
        request = ForkServer(control, kill_at_end=order["kill_at_end"]).serve()
        if request is not None:
            become(request)
    # The command waits until the connection ends, and then nothing of it is to be left.
    os._exit(0)


def run_command(session: socket.socket) -> None:
    """Run the command or the script."""
    with session:
        servers = receive_servers(session)
    start: Any = starter.open_server

    def open_server(environment: Mapping[str, str]) -> Any:
        if not servers:
            return start(environment)
        pid, *pair = servers.pop(0)
        for end in pair:
            begin_server(end, environment)
        return GivenServer(pid), *pair

    starter.open_server = open_server
    if sys.argv[1].endswith(".py"):
        sys.argv.pop(0)
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    show_command_line(["-m", CLI, *sys.argv[1:]])
    # A script imports no command.
    from shadowsync import cli

    sys.argv[0] = str(cli.__file__)
    cli.main()


def main() -> None:
    """Connect to the session, and be what the arguments say."""
    session = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    session.connect(bytes.fromhex(sys.argv.pop(1)))
    serve(session) if sys.argv[1:] == [SERVE] else run_command(session)


if __name__ == "__main__":
    main()
