"""A fork server of the standard library, which has imported what its processes need.

`multiprocessing.forkserver.main` serves, in an interpreter that is started as `python -m
shadowsync.nodes.supervisor.fork_server LISTENER ALIVE MODULES...`. It ends when the other end of ALIVE does.

`multiprocessing.get_context("forkserver")` has one server a process, which is the user's. It starts in this
process's session, takes modules from the working directory, where a user's queue.py would hide Python's, and
has a resource tracker beside it; and each child imports the user's `__main__`. So `ForkServer` starts a
server, and a child carries out a `ForkOrder` in the place of a `multiprocessing.Process`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import logging
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, reduction, resource_tracker
from typing import Any, NoReturn

from ..runtime.process import FORK_SERVER, command_line_room, importing_torch, python, show_command_line


class ForkServer:
    """A server; creating it does not wait for its imports. Raises OSError.

    Args:
        modules: what it imports.
        environment: all of its variables.

    Attributes:
        address: where this user's processes reach it, until `close`; see `fork`.
        process: that of the server.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            folder = os.open(theirs.enter_context(tempfile.TemporaryDirectory()), os.O_PATH)
            theirs.callback(os.close, folder)
            listener = theirs.enter_context(socket.socket(socket.AF_UNIX))
            # An address has at most 107 bytes; this one is short in whatever folder.
            listener.bind(f"/proc/self/fd/{folder}/fork")
            listener.listen()
            # It leads to the socket also when the file is gone, so that none is left after a SIGKILL.
            door = os.open("fork", os.O_PATH, dir_fd=folder)
            ours.callback(os.close, door)
            self.address = f"/proc/{os.getpid()}/fd/{door}"
            their_alive, alive = os.pipe()
            theirs.callback(os.close, their_alive)
            ours.callback(os.close, alive)
            self.process = start_server(listener.fileno(), their_alive, modules, environment)
            self._ours = ours.pop_all()

    def close(self) -> None:
        """End the server, also while it imports; its processes go on."""
        self._ours.close()
        self.process.kill()
        self.process.wait()


def start_server(
    listener: int, alive: int, modules: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start an interpreter that serves."""
    return subprocess.Popen(
        python(FORK_SERVER, str(listener), str(alive), *modules, command_line_room()),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=dict(environment),
        pass_fds=[listener, alive],
    )


def fork(address: str, order: ForkOrder, streams: Sequence[int]) -> int:
    """Have the server at this address fork a process that carries out the order.

    Returns a descriptor, from which `forkserver.read_signed` reads the number of the process, and its exit
    code when it has ended; or the end, if the server has ended before. Any thread may call. Raises OSError.

    Args:
        streams: descriptors that become standard input, output and error.
    """
    with contextlib.ExitStack() as ours, open(os.memfd_create("order"), "w+b") as file:
        # Nothing to prepare, such as a `__main__`; and what stands for a `multiprocessing.Process`.
        reduction.dump({}, file)
        reduction.dump(order, file)
        file.seek(0)
        status, their_status = os.pipe()
        ours.callback(os.close, status)
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(address)
                # In the place of the clients a `multiprocessing.Process` has its parent's ALIVE and tracker.
                # With them the client stays open until a server of Python 3.14 has acknowledged the message.
                sent = [file.fileno(), their_status, client.fileno(), client.fileno(), *streams]
                socket.send_fds(client, [bytes([len(sent)])], sent)
        finally:
            os.close(their_status)
        ours.pop_all()
    return status


class ForkOrder:
    """What a forked process runs: like `python ARGUMENTS`, in a session of its own.

    Args:
        arguments: "-m" and a module with `main`, or a script; then its arguments.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = list(arguments)

    def _bootstrap(self, parent: int) -> int:
        """Carry it out; `multiprocessing` calls this in the child, which exits with the code.

        Leaves out the interpreter's teardown of what was imported, half a second of CPU.
        """
        code: int | str | None = 1
        try:
            self.set_up(parent)
            code = self.run()
        except SystemExit as leaving:
            code = leaving.code
        except BaseException:  # noqa: BLE001 - as an interpreter does at the top
            traceback.print_exc()
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
        # As at an interpreter's end: joins threads that are no daemons.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        return code or 0

    def set_up(self, parent: int) -> None:
        """Make a forked process like a new one: session, descriptors, streams, random numbers."""
        os.setsid()
        # Where `multiprocessing` has what a child received.
        server: Any = forkserver._forkserver
        tracker: Any = resource_tracker._resource_tracker
        streams: list[int] = server._inherited_fds
        for place, stream in enumerate(streams):
            os.dup2(stream, place)
        for descriptor in (parent, server._forkserver_alive_fd, tracker._fd, sys.stdin.fileno(), *streams):
            if descriptor > 2:
                os.close(descriptor)
        # Where it needs a tracker, it starts one.
        tracker._fd = None
        for name, place in (("stdout", 1), ("stderr", 2)):
            old = getattr(sys, name)
            # Lives as long as the process.
            new = open(  # noqa: SIM115
                place,
                "w",
                buffering=-1 if place == 1 else 1,
                encoding=old.encoding,
                errors=old.errors,
                closefd=False,
            )
            setattr(sys, name, new)
        sys.stdin = open(0, encoding=sys.stdout.encoding, closefd=False)  # noqa: SIM115
        # Python's own are new in each child, and torch's are the same in every new process.
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed()
        show_command_line(self.arguments)

    def run(self) -> int | None:
        """Run it, and return the exit code."""
        if self.arguments[0] != "-m":
            sys.argv = self.arguments
            runpy.run_path(self.arguments[0], run_name="__main__")
            return None
        module = importlib.import_module(self.arguments[1])
        sys.modules["__main__"] = module
        sys.argv = [str(module.__file__), *self.arguments[2:]]
        code: int | None = module.main()
        return code


def serve(listener: int, alive: int, modules: Sequence[str]) -> NoReturn:
    """Import, and serve; the process ends with it."""
    show_command_line(["-m", FORK_SERVER])
    # Arrow brings an allocator that it does not use by default, and that starts a thread.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    with importing_torch():
        for module in modules:
            importlib.import_module(module)
    # A child has none of them, but the locks that they held.
    if (threads := len(os.listdir("/proc/self/task"))) != 1:
        sys.exit(f"shadowsync: the fork server cannot fork: it has {threads} threads")
    gc.collect()
    # The collector then skips what exists now; otherwise it would write to shared pages, and so copy them.
    gc.freeze()
    with contextlib.suppress(SystemExit):
        forkserver.main(listener, alive, [])
    # A teardown of torch takes its time.
    os._exit(0)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:-1])
