"""One supervised process of a job."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from ...pipeline.errors import ExitCode
from ..runtime.process import exit_status_text
from .starter import StartedProcess

SAVED_LINES = 40


class Child:
    """A process of the job, in a session of its own.

    A terminal's Ctrl-C therefore reaches only the supervisor. The process's standard input is a pipe that
    ends when the supervisor does. The last SAVED_LINES of its output are saved.

    Attributes:
        ended: set once the process has ended and its output is read.
        code: its exit code, or minus the number of the signal that killed it.
        lines: the last lines of its output.
    """

    def __init__(self, role: str, index: int, token: str, process: StartedProcess) -> None:
        self.role, self.index, self.token = role, index, token
        self.pid = process.pid
        self._process = process
        self.ended = asyncio.Event()
        self.code: int | None = None
        self.lines: deque[str] = deque(maxlen=SAVED_LINES)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._wait())]

    @property
    def exit_code(self) -> ExitCode:
        """The exit code as an `ExitCode`, also after a signal."""
        return known_exit_code(self.code)

    @property
    def how(self) -> str:
        """How it ended, for people."""
        return exit_status_text(self.code)

    def signal(self, number: int) -> None:
        """Send a signal, if it is still there."""
        if not self.ended.is_set():
            self._process.signal(number)

    def last_line(self) -> str:
        """Return the last line of its output, without the program's name in front."""
        return text_of_last_line(self.lines, self.role)

    async def close(self) -> None:
        """Close its pipes, and reap it if it has ended."""
        self._process.close()
        if not self.ended.is_set():
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self) -> None:
        while line := await self._process.output.readline():
            self.lines.append(line.decode("utf-8", "replace").rstrip())

    async def _wait(self) -> None:
        self.code = await self._process.wait()
        # Its last output may still be in the pipe.
        await asyncio.wait({self._tasks[0]}, timeout=1.0)
        self.ended.set()


def known_exit_code(code: int | None) -> ExitCode:
    """Return a process's exit code as one of this package's.

    None and signals are deaths.
    """
    if code is None or code < 0:
        return ExitCode.STOPPED_BY_DEATH
    try:
        return ExitCode(code)
    except ValueError:
        return ExitCode.INTERNAL


def text_of_last_line(lines: Iterable[str], role: str) -> str:
    """Return the last of `lines` that has text, without the program's name in front."""
    last = next((line for line in reversed(list(lines)) if line.strip()), "")
    return last.removeprefix(f"shadowsync {role}: ")
