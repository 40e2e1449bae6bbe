"""Processes that a test starts, waits for, signals, and always gets rid of."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from multiprocessing import forkserver
from pathlib import Path

import psutil
from shadowsync.nodes.runtime.process import CLI

from . import warm_job
from .warm_job import WarmOrder
from .warm_server import WarmServer

MARKER = "SHADOWSYNC_TEST_SESSION"
THREADS = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"), "1"
)
# Only what hangs takes so long, also on a machine that is busy with much else.
ENOUGH_SECONDS = 120.0
# What the server without torch forks; the other one forks the rest.
WITHOUT_TORCH = ("coordinator", "reader", "run", "resume", "compare", "profile")
# These start fork servers: commands, or scripts by their first argument.
STARTERS = ("run", "resume", "profile", "block")


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs or is stopped.

    Not once it is dead and waits to be reaped, nor when it has let go of all its files and is about to be.
    """
    try:
        return bool(process.is_running() and process.num_fds())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        # Nobody may look at the files of one that is dead.
        return False


def free_ports(count: int) -> int:
    """The first of so many that nobody has now; in any order, since others may look for some, too."""
    starts = range(21_000, 31_000, count)
    for first in random.sample(starts, len(starts)):
        sockets = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.create_server(("127.0.0.1", port)))
        except OSError:
            continue
        else:
            return first
        finally:
            for one in sockets:
                one.close()
    raise AssertionError("no free ports")


def wait_until(condition: Callable[[], object], what: str, seconds: float = ENOUGH_SECONDS) -> float:
    """Waits for a condition and gives the seconds that it took; fails the test past the limit."""
    begun = time.monotonic()
    never = threading.Event()
    while not condition():
        if time.monotonic() - begun > seconds:
            raise AssertionError(f"within {seconds:g} s it did not come to this: {what}")
        never.wait(0.02)
    return time.monotonic() - begun


async def until(condition: Callable[[], object], what: str, seconds: float = ENOUGH_SECONDS) -> None:
    """The same on a loop, which goes on meanwhile."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - what changes is plain attributes
                await asyncio.sleep(0.005)
    assert condition(), f"within {seconds:g} s it did not come to this: {what}"


class Process(ABC):
    """A process that leads its own group; what it writes goes to a file."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self.log = log
        self.code: int | None = None

    @property
    def servers(self) -> list[int]:
        """Processes that fork for it, and are not its own children: those of a `warm_job`."""
        file = _servers_file(self.log)
        return [int(line) for line in file.read_text("ascii").split()] if file.exists() else []

    @abstractmethod
    def poll(self) -> int | None:
        """The exit code, minus the number of the signal that killed it, or None while it runs."""

    def wait(self, seconds: float = ENOUGH_SECONDS) -> int:
        """Waits for the end; gives the exit code."""
        wait_until(lambda: self.poll() is not None, f"{self.pid} ends; it wrote: {self.text()}", seconds)
        assert self.code is not None
        return self.code

    def signal(self, number: int) -> None:
        """Sends a signal to this process alone."""
        assert self.poll() is None, f"{self.pid} has ended with {self.code}: {self.text()}"
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def suspend(self) -> None:
        """SIGSTOP."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def interrupt(self) -> None:
        """SIGTERM, which asks it to stop as SIGINT does."""
        self.signal(signal.SIGTERM)

    def offspring(self) -> list[psutil.Process]:
        """All that it has started, or had forked, and that is still there."""
        found = []
        for pid in (self.pid, *self.servers):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += psutil.Process(pid).children(recursive=True)
        return found

    def text(self) -> str:
        """What it wrote so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def end(self) -> None:
        """Kills it and its group, whatever they do."""
        while self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            threading.Event().wait(0.01)


def _servers_file(log: Path) -> Path:
    return log.with_suffix(".servers")


class Spawned(Process):
    """Started as a user would start it."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        log: Path,
        *,
        streams: tuple[int | None, int | None] = (None, None),
    ) -> None:
        with log.open("ab") as file:
            output, errors = (file.fileno() if one is None else one for one in streams)
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
            )
        super().__init__(self._popen.pid, log)

    def poll(self) -> int | None:
        self.code = self._popen.poll()
        return self.code


class Forked(Process):
    """A process forked from the warm server."""

    def __init__(self, server: WarmServer, log: Path, order: WarmOrder, *, torch: bool) -> None:
        self._status = server.start(order, log, torch=torch)
        super().__init__(forkserver.read_signed(self._status), log)

    def poll(self) -> int | None:
        if self.code is None and select.select([self._status], [], [], 0)[0]:
            self.code = forkserver.read_signed(self._status)
            os.close(self._status)
        return self.code


class Starter:
    """Starts processes of one test, marked so that none of their offspring can hide."""

    def __init__(self, server: WarmServer, environment: Mapping[str, str], folder: Path) -> None:
        self._server = server
        self._environment = dict(environment)
        self._folder = folder
        self.started: list[Process] = []

    def spawn(
        self, *arguments: str, script: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> Process:
        """`shadowsync ARGUMENTS`, as a user starts it, or a Python script with these arguments."""
        program = [str(script)] if script else ["-m", "shadowsync.cli"]
        command = [sys.executable, *program, *arguments]
        full = self._environment | dict(environment or {})
        log = self._log(script.stem if script else arguments[0])
        return self._remember(Spawned(command, full, self._folder, log))

    def spawn_warm(
        self,
        *arguments: str,
        script: Path | None = None,
        environment: Mapping[str, str] | None = None,
        streams: tuple[int | None, int | None] = (None, None),
    ) -> Process:
        """An interpreter of its own for the command or the script, as `spawn`, but with a warm fork server.

        Its standard output and error may be given, in place of the log.
        """
        log = self._log(script.stem if script else arguments[0])
        command = [sys.executable, "-m", *self._warm_job(log), *([str(script)] if script else []), *arguments]
        full = self._environment | dict(environment or {})
        return self._remember(Spawned(command, full, self._folder, log, streams=streams))

    def fork(
        self, *arguments: str, script: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> Process:
        """The same at once, or a Python script with these arguments; a job's fork server is warm, too."""
        log = self._log(arguments[0])
        program = [str(script)] if script else []
        if arguments[0] in STARTERS:
            program = ["-m", *self._warm_job(log), *program]
        words = [*(program or ["-m", CLI]), *arguments]
        torch = script is not None or arguments[0] not in WITHOUT_TORCH
        order = WarmOrder(words, environment or {}, str(self._folder))
        return self._remember(Forked(self._server, log, order, torch=torch))

    def ended(self, *arguments: str, code: int = 0, environment: Mapping[str, str] | None = None) -> str:
        """What a forked command has written, once it has ended with this code."""
        process = self.fork(*arguments, environment=environment)
        assert process.wait() == code, (arguments, process.text())
        return process.text()

    def _warm_job(self, log: Path) -> list[str]:
        return [warm_job.__name__, *self._server.addresses, str(_servers_file(log))]

    def reap(self) -> None:
        """Learns how those ended that are dead, if the test did not ask."""
        for process in self.started:
            with contextlib.suppress(psutil.NoSuchProcess):
                if is_alive(psutil.Process(process.pid)):
                    continue
            process.wait()

    def end_all(self) -> None:
        """Kills what is left, which is so after a failed test alone, and prints where it was."""
        for process in self.started:
            if process.poll() is None:
                # PYTHONFAULTHANDLER is set: it writes its stacks, and ends.
                process.signal(signal.SIGABRT)
                with contextlib.suppress(AssertionError):
                    process.wait(5.0)
                print(f"{process.log.name} of {process.pid} was left:\n{process.text()}")
            process.end()

    def _log(self, name: str) -> Path:
        return self._folder / f"{len(self.started):02d}-{name}.txt"

    def _remember(self, process: Process) -> Process:
        self.started.append(process)
        return process


Starting = Callable[[Path], AbstractContextManager[Starter]]


def marked_processes(value: str) -> list[psutil.Process]:
    """All living processes whose environment has the marker with this value, but for zombies."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            if process.environ().get(MARKER) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end_marked(value: str, servers: set[int]) -> None:
    """Kills all marked processes but the warm servers, also those that no test knows of."""
    while left := [process for process in marked_processes(value) if process.pid not in servers]:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1.0)
