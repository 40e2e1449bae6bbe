"""A job that is looked at while it trains, and interrupted when that is done."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from shadowsync.benchmarks.job_meter import cpu_by_role, trained
from shadowsync.benchmarks.job_runs import job_text

START_SECONDS = 120.0
END_SECONDS = 60.0
POLL_SECONDS = 0.05
GROWTH_SECONDS = 20.0
GROWTH_POLL_SECONDS = 0.005


class JobEnded(RuntimeError):
    """The job did not train, or ended before it was looked at; the message has the end of what it said."""


@dataclass(frozen=True)
class LiveJob:
    """A job under way: its supervisor's process, and the folder of its runs."""

    process: subprocess.Popen[bytes]
    folder: Path

    def wait_for_training(self) -> float:
        """Until its first batches are in the ledger; gives when, by the monotonic clock. Raises JobEnded."""
        limit = time.monotonic() + START_SECONDS
        while not trained(self.folder):
            self.check()
            if time.monotonic() > limit:
                raise JobEnded(f"nothing trained in {START_SECONDS:.0f} s: {self.said()}")
            time.sleep(POLL_SECONDS)
        return time.monotonic()

    def sleep_until(self, moment: float) -> None:
        """Sleeps to that moment of the monotonic clock. Raises JobEnded if the job is over by then."""
        time.sleep(max(0.0, moment - time.monotonic()))
        self.check()

    def check(self) -> None:
        """Raises JobEnded if the job is over."""
        if self.process.poll() is not None:
            raise JobEnded(f"the job ended with {self.process.returncode}: {self.said()}")

    def trained_batches(self) -> int:
        """By the ledger's file, at the moment when it grows: trainers tell it a few times a second."""
        path = self.folder / "latest" / "ledger.sqlite"
        limit = time.monotonic() + GROWTH_SECONDS
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            before = count = _batches(database)
            while count == before:
                self.check()
                if time.monotonic() > limit:
                    raise JobEnded(f"nothing was trained in {GROWTH_SECONDS:.0f} s: {self.said()}")
                time.sleep(GROWTH_POLL_SECONDS)
                count = _batches(database)
        return count

    def cpu_seconds(self) -> float:
        """Of all its processes, so far."""
        return sum(cpu_by_role(psutil.Process(self.process.pid)).values())

    def processes(self, role: str) -> list[int]:
        """The processes of its nodes of a role."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if child.cmdline()[1:4] == ["-m", "shadowsync.cli", role]:
                    found.append(child.pid)
        return found

    def said(self) -> str:
        """The end of what it printed."""
        return (self.folder / "said").read_text("utf-8", "replace")[-1500:]


@contextlib.contextmanager
def live_job(
    sections: Mapping[str, Mapping[str, Any]],
    command: Sequence[str] = ("run",),
    variables: Mapping[str, str] | None = None,
) -> Iterator[LiveJob]:
    """Starts the job in a folder of its own; after the block it is interrupted if it has not ended.

    `command` is what starts it, with its options; `variables` are set beside those of this process.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        whole = {key: dict(section) for key, section in sections.items()}
        whole.setdefault("run", {})["directory"] = name
        (folder / "job.toml").write_text(job_text(whole), encoding="utf-8")
        said = stack.enter_context((folder / "said").open("wb"))
        words = [sys.executable, "-m", "shadowsync.cli", *command, str(folder / "job.toml"), "--quiet"]
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=name,
            env={**os.environ, **(variables or {})},
        )  # fmt: skip
        try:
            yield LiveJob(process, folder)
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Interrupts it, and ends all that is below it if that does not help."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        below = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for child in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def _batches(database: sqlite3.Connection) -> int:
    return int(database.execute("SELECT count(*) FROM batches").fetchone()[0])
