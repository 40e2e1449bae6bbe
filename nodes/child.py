"""One supervised process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque

from ..pipeline.errors import ExitCode

KEPT_LINES = 40


def words_of(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "still running"
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"


class Child:
    """A process in a session of its own, so that a terminal's Ctrl-C reaches the supervisor only.

    Its standard input is a pipe that ends when the supervisor does; what it writes is kept, the last
    KEPT_LINES of it.
    """

    def __init__(self, role: str, index: int, token: str, process: asyncio.subprocess.Process) -> None:
        self.role, self.index, self.token = role, index, token
        self._process = process
        self.ended = asyncio.Event()
        self.code: int | None = None
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._wait())]

    @classmethod
    async def start(cls, role: str, index: int, token: str, command: list[str]) -> Child:
        """Starts the process, with one thread for each of the numerical libraries."""
        one_thread = dict.fromkeys(
            ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"), "1"
        )
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | one_thread,
        )
        return cls(role, index, token, process)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> ExitCode:
        """What it ended with, as one of ours."""
        if self.code is None or self.code < 0:
            return ExitCode.STOPPED_BY_DEATH
        try:
            return ExitCode(self.code)
        except ValueError:
            return ExitCode.INTERNAL

    def signal(self, number: int) -> None:
        """Sends a signal, if it is still there."""
        if not self.ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def last_line(self) -> str:
        """The last line it wrote, without the program's name in front."""
        last = next((line for line in reversed(self.lines) if line.strip()), "")
        prefix = f"shadowsync {self.role}: "
        return last.removeprefix(prefix)

    async def close(self) -> None:
        """Reaps what is left of it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not self.ended.is_set():
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self.lines.append(line.decode("utf-8", "replace").rstrip())

    async def _wait(self) -> None:
        self.code = await self._process.wait()
        # Its last words may still be in the pipe.
        await asyncio.wait({self._tasks[0]}, timeout=1.0)
        self.ended.set()
