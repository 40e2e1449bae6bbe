"""A command whose fork servers are forked from the test session's, which has done its imports.

A job's own servers import for three seconds of CPU, half of what a small job takes. Arguments are the
addresses of the session's servers, without torch and with it, and a file that gets the numbers of the job's;
then those of `shadowsync`, or a Python script and its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path

from shadowsync.nodes.runtime.process import CLI, show_command_line
from shadowsync.nodes.supervisor import fork_server
from shadowsync.nodes.supervisor.fork_server import ForkOrder, fork, serve
from shadowsync.nodes.supervisor.starter import TORCH

# From sys/prctl.h.
PR_SET_PDEATHSIG = 1


class WarmOrder(ForkOrder):
    """A process that is killed when the test session's server ends, and so when pytest does.

    Args:
        arguments: as for `ForkOrder`.
        environment: variables that differ from the server's.
        folder: the working directory.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], folder: str) -> None:
        super().__init__(arguments)
        self.environment = dict(environment)
        self.folder = folder

    def set_up(self, parent: int) -> None:
        """Do the same, with environment and folder."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        super().set_up(parent)
        os.environ.update(self.environment)
        # The interpreter read it when the server started.
        sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        os.chdir(self.folder)


class ServeOrder(WarmOrder):
    """One of a job's servers; `arguments` are its modules. Two more descriptors are LISTENER and ALIVE."""

    def set_up(self, parent: int) -> None:
        """Do the same, and keep the two."""
        descriptors = forkserver.get_inherited_fds()
        assert descriptors is not None
        self._ends = descriptors[3:]
        del descriptors[3:]
        super().set_up(parent)

    def run(self) -> int | None:
        listener, alive = self._ends
        serve(listener, alive, self.arguments)


class ForkedServer:
    """What `ForkServer` needs of its server's process.

    Args:
        status: as `fork` gives it.
    """

    def __init__(self, status: int) -> None:
        self._status = status
        self.pid = forkserver.read_signed(status)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end; return the exit code."""
        code: int = forkserver.read_signed(self._status)
        os.close(self._status)
        return code


def main() -> None:
    """Run the command or the script."""
    light, torch, pids = sys.argv[1:4]
    del sys.argv[1:4]

    def start_server(
        listener: int, alive: int, modules: Sequence[str], environment: Mapping[str, str]
    ) -> ForkedServer:
        order = ServeOrder(modules, environment, os.getcwd())
        address = torch if set(TORCH) <= set(modules) else light
        server = ForkedServer(fork(address, order, (0, 1, 2, listener, alive)))
        with Path(pids).open("a", encoding="ascii") as file:
            print(server.pid, file=file)
        return server

    setattr(fork_server, start_server.__name__, start_server)
    if sys.argv[1].endswith(".py"):
        sys.argv.pop(0)
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    show_command_line(["-m", CLI, *sys.argv[1:]])
    # A script imports no command.
    from shadowsync import cli

    sys.argv[0] = str(cli.__file__)
    cli.main()


if __name__ == "__main__":
    # Under its name, by which a server knows its orders.
    from shadowsync.tests.support.jobs import warm_job

    warm_job.main()
