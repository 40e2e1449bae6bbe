"""Processes that a test starts, waits for, signals, and always gets rid of."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil

MARKER = "SHADOWSYNC_TEST_SESSION"
THREADS = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"), "1"
)
SERVER = Path(__file__).with_name("warm_server.py")


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> float:
    """Waits for a condition and gives the seconds that it took; fails the test past the limit."""
    begun = time.monotonic()
    never = threading.Event()
    while not condition():
        if time.monotonic() - begun > seconds:
            raise AssertionError(f"within {seconds:g} s it did not come to this: {what}")
        never.wait(0.02)
    return time.monotonic() - begun


class Process(ABC):
    """A process that leads its own group; what it writes goes to a file."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self.log = log
        self.code: int | None = None

    @abstractmethod
    def poll(self) -> int | None:
        """The exit code, minus the number of the signal that killed it, or None while it runs."""

    def wait(self, seconds: float = 60.0) -> int:
        """Waits for the end; gives the exit code."""
        wait_until(lambda: self.poll() is not None, f"{self.pid} ends; it wrote: {self.text()}", seconds)
        assert self.code is not None
        return self.code

    def signal(self, number: int) -> None:
        """Sends a signal to this process alone."""
        assert self.poll() is None, f"{self.pid} has ended with {self.code}: {self.text()}"
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.signal(signal.SIGKILL)

    def suspend(self) -> None:
        """SIGSTOP."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def interrupt(self) -> None:
        """SIGTERM, which asks it to stop as SIGINT does."""
        self.signal(signal.SIGTERM)

    def text(self) -> str:
        """What it wrote so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def end(self) -> None:
        """Kills it and its group, whatever they do."""
        while self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            threading.Event().wait(0.01)


class Spawned(Process):
    """Started as a user would start it."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path
    ) -> None:
        with log.open("ab") as file:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
            )
        super().__init__(self._popen.pid, log)

    def poll(self) -> int | None:
        """See `Process.poll`."""
        self.code = self._popen.poll()
        return self.code


class WarmServer:
    """The process that forks warm ones, see warm_server.py; one for a whole test session."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment),
            text=True,
            start_new_session=True,
        )
        self.pid = int(self._answer()["pid"])

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """One question, one answer."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps(question) + "\n")
        self._popen.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Ends it."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.close()
        self._popen.stdout.close()
        self._popen.wait(10)

    def _answer(self) -> dict[str, Any]:
        assert self._popen.stdout is not None
        answer: dict[str, Any] = json.loads(self._popen.stdout.readline())
        return answer


class Forked(Process):
    """A node forked from the warm server."""

    def __init__(self, server: WarmServer, log: Path, start: dict[str, Any]) -> None:
        self._server = server
        super().__init__(int(server.ask({"start": start | {"log": str(log)}})["pid"]), log)

    def poll(self) -> int | None:
        """See `Process.poll`."""
        if self.code is None:
            self.code = self._server.ask({"poll": self.pid})["code"]
        return self.code


class Starter:
    """Starts processes of one test, marked so that none of their offspring can hide."""

    def __init__(self, server: WarmServer, environment: Mapping[str, str], folder: Path) -> None:
        self._server = server
        self._environment = dict(environment)
        self._folder = folder
        self.started: list[Process] = []

    def spawn(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Process:
        """`shadowsync ARGUMENTS`, as a user starts it."""
        command = [sys.executable, "-m", "shadowsync.cli", *arguments]
        full = self._environment | dict(environment or {})
        return self._remember(Spawned(command, full, self._folder, self._log(arguments[0])))

    def fork(
        self, *arguments: str, script: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> Process:
        """The same at once, or a Python script with these arguments."""
        start = {
            "arguments": list(arguments),
            "script": str(script) if script else "",
            "environment": dict(environment or {}),
            "folder": str(self._folder),
        }
        return self._remember(Forked(self._server, self._log(arguments[0]), start))

    def end_all(self) -> None:
        """Kills what is left."""
        for process in self.started:
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


def end_marked(value: str, server: int) -> None:
    """Kills all marked processes but the warm server, also those that no test knows of."""
    while left := [process for process in marked_processes(value) if process.pid != server]:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1.0)
