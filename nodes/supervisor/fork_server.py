"""The fork server of a job.

The server forks nodes from processes with all imports done. It is started as `python -m
shadowsync.nodes.supervisor.fork_server LIGHT TORCH`, with the descriptors of two sockets whose other ends the
client has (see `starter`). The first process serves LIGHT: it never imports torch, and forks coordinator,
readers and relay. It also forks the second process, which serves TORCH: it imports torch and forks all
others. So torch is imported once a job, and its pages are shared.

Both processes end when their socket ends. A forked child has none of its parent's threads, but shares its
sockets and its GPU. So a process refuses to fork while it has another thread, another socket, or CUDA.
"""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import json
import logging
import os
import random
import runpy
import select
import signal
import socket
import stat
import sys
import threading
import traceback
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NoReturn

from ..runtime.process import CLI, FORK_SERVER, JOB_CHECK, RELAY, importing_torch, show_command_line


def why_not_fork(own_sockets: Collection[int] = ()) -> str:
    """Return what prevents a fork; empty if nothing does.

    Linux only. Counts the threads that the kernel knows, and so also those of libraries.

    Args:
        own_sockets: descriptors of sockets that the child closes before it does anything else.
    """
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return f"it has {threads} threads"
    for name in os.listdir("/proc/self/fd"):
        try:
            opened = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            # The listing's own descriptor, closed by now.
            continue
        if opened.startswith("socket:") and int(name) not in own_sockets:
            return f"it has a socket (descriptor {name})"
        if opened.startswith("/dev/nvidia"):
            return f"it has a GPU open ({opened})"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "it has initialized CUDA"
    return ""


MESSAGE_BYTES = 64 << 10
# Descriptors that come with a request: standard input, output and error.
STREAMS = 3
# Imported before the first fork, by both; then by the process without torch; then by the other process.
COMMON = (
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


@dataclass(frozen=True)
class ForkRequest:
    """A request to fork a process: its arguments and surroundings.

    Attributes:
        arguments: arguments of the interpreter: "-m" and a module with `main`, or a script; then its
            arguments.
        environment: variables that differ from the server's.
        folder: the working directory; empty for the server's.
        streams: descriptors that become standard input, output and error.
    """

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    streams: list[int]


class ForkServer:
    """One serving process: takes requests, forks, and reports how its children ended.

    Args:
        control: a socket of whole messages (SOCK_SEQPACKET); its end ends the server.
        kill_at_end: whether its children are killed at the end. Children that watch their standard input end
            by themselves, once they have saved what they can.
    """

    def __init__(self, control: socket.socket, *, kill_at_end: bool = False) -> None:
        self._control = control
        self._kill_at_end = kill_at_end
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        # By descriptor of the process: its pid, and the number of its request.
        self._children: dict[int, tuple[int, int]] = {}

    def serve(self) -> ForkRequest | None:
        """Serve until the other end closes.

        In a forked child, return what to run there.
        """
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor != self._control.fileno():
                    self._reap(descriptor)
                    continue
                message, streams = self._receive()
                if not message:
                    self._end_children()
                    return None
                request = self._fork(json.loads(message), streams)
                if request is not None:
                    return request

    def _receive(self) -> tuple[bytes, list[int]]:
        """Return the next message and its descriptors; nothing at the end."""
        try:
            message, streams, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, STREAMS)
        except ConnectionResetError:
            # The client was killed before it had read all replies.
            return b"", []
        return message, streams

    def _fork(self, request: dict[str, Any], streams: list[int]) -> ForkRequest | None:
        number = int(request["request"])
        # Their number is smaller if there was no room for them here.
        refusal = "" if len(streams) == STREAMS else os.strerror(errno.EMFILE)
        try:
            refusal = refusal or why_not_fork({self._control.fileno()})
            pid = -1 if refusal else os.fork()
        except OSError as error:
            refusal, pid = str(error.strerror), -1
        if pid == 0:
            self._control.detach()
            return ForkRequest(request["arguments"], request["environment"], request["folder"], streams)
        for stream in streams:
            os.close(stream)
        if refusal:
            self._reply({"request": number, "refused": refusal})
            return None
        try:
            process = os.pidfd_open(pid)
        except OSError as error:
            # Without one nobody would learn of its end.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._reply({"request": number, "refused": str(error.strerror)})
            return None
        self._children[process] = pid, number
        self._poll.register(process, select.POLLIN)
        self._reply({"request": number, "pid": pid}, process)
        return None

    def _reap(self, process: int) -> None:
        pid, number = self._children.pop(process)
        self._poll.unregister(process)
        os.close(process)
        _, status = os.waitpid(pid, 0)
        self._reply({"request": number, "code": os.waitstatus_to_exitcode(status)})

    def _reply(self, message: dict[str, Any], *descriptors: int) -> None:
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            # The client is gone; the next poll reports that, too.
            return

    def _end_children(self) -> None:
        for pid, _ in self._children.values():
            if self._kill_at_end:
                # Not reaped yet, so the number is still that of the child.
                os.kill(pid, signal.SIGKILL)


def become(request: ForkRequest) -> NoReturn:
    """Run like `python ARGUMENTS` in a forked child, and exit.

    Leaves out the interpreter's teardown of what was imported, half a second of CPU.
    """
    code: int | str | None = 1
    try:
        _set_up_process(request)
        code = _run(request.arguments)
    except SystemExit as leaving:
        code = leaving.code
    except BaseException:  # noqa: BLE001 - as an interpreter does at the top
        traceback.print_exc()
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code or 0)


def close_descriptors(streams: Collection[int]) -> None:
    """Close the streams, and what else a forked child has of its server.

    0, 1 and 2 stay, and files. Such a file is a library's own, since the server opens none: libffi (3.4 and
    later) keeps its own library open and maps code of it for callbacks. Where its descriptor stands for
    another file, the process crashes.
    """
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        except OSError:
            # The listing's own, closed by now.
            continue
        if descriptor > 2 and (descriptor in streams or not is_file):
            os.close(descriptor)


def _set_up_process(request: ForkRequest) -> None:
    """Set up a forked process like a new one.

    Sets session, streams, environment, folder and random numbers.
    """
    os.setsid()
    for stream, place in zip(request.streams, (0, 1, 2), strict=True):
        os.dup2(stream, place)
    close_descriptors(request.streams)
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
    os.environ.update(request.environment)
    # The interpreter read PYTHONPATH when the server started.
    sys.path[:0] = [path for path in request.environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if request.folder:
        os.chdir(request.folder)
    # Each child has the server's state of these; torch's own is the same in every new process.
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    show_command_line(request.arguments)


def _run(arguments: list[str]) -> int | None:
    if arguments[0] != "-m":
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
        return None
    module = importlib.import_module(arguments[1])
    sys.modules["__main__"] = module
    sys.argv = [str(module.__file__), *arguments[2:]]
    code: int | None = module.main()
    return code


def main() -> None:
    """Import, fork the second process, and serve."""
    show_command_line(["-m", FORK_SERVER])
    light, torch = (socket.socket(fileno=int(word)) for word in sys.argv[1:3])
    # Arrow brings an allocator that it does not use by default, and that starts a thread.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    _import(COMMON)
    if refusal := why_not_fork({light.fileno(), torch.fileno()}):
        sys.exit(f"shadowsync: the fork server cannot fork: {refusal}")
    torch_pid = os.fork()
    if torch_pid == 0:
        light.close()
        with importing_torch():
            _import(TORCH)
        request = _serve(torch)
        if request is None:
            # If the first one was killed, nobody kills this one; a teardown of torch takes its time.
            os._exit(0)
    else:
        torch.close()
        _import(LIGHT)
        request = _serve(light)
        if request is None:
            os.kill(torch_pid, signal.SIGKILL)
            os.waitpid(torch_pid, 0)
    if request is not None:
        become(request)


def _serve(control: socket.socket) -> ForkRequest | None:
    gc.collect()
    # The collector then skips what exists now; otherwise it would write to shared pages, and so copy them.
    gc.freeze()
    return ForkServer(control).serve()


def _import(modules: tuple[str, ...]) -> None:
    for module in modules:
        importlib.import_module(module)


if __name__ == "__main__":
    main()
