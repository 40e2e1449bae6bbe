"""`shadowsync run` as a child process, which Ctrl-C shuts down cleanly."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ..nodes.runtime.process import CLI, python


class JobProcess:
    """Run jobs one after the other, on the main thread.

    `interrupts` counts Ctrl-C. A job's process leads a session of its own, so that the terminal's Ctrl-C
    reaches it once, through this class. Its standard input ends when this process ends, for whatever reason.
    """

    def __init__(self) -> None:
        self.interrupts = 0
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def heeding_signals(self) -> Iterator[None]:
        """Pass SIGINT and SIGTERM on instead of ending this process."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in before:
            signal.signal(number, self._interrupt)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self, job_file: Path, log: Path) -> tuple[int, str]:
        """Run a resolved job; return its exit code and last log line."""
        command = python(CLI, "run", str(job_file), "--quiet", "--supervised")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            if self.interrupts:
                self._process.send_signal(signal.SIGTERM)
            code = self._process.wait()
        finally:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None
        return code, last_line(log)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.interrupts += 1
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)


def last_line(log: Path) -> str:
    """Return a log's last non-blank line, without `shadowsync run: `."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    last = next((line for line in reversed(lines) if line.strip()), "")
    return last.removeprefix("shadowsync run: ").strip()
