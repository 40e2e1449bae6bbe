"""One job with injected faults."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

import psutil

from ...nodes.runtime.process import CLI, python
from ...pipeline.errors import ExitCode
from ..job_process import last_line
from .schedule import ProcessFault

MARKER: Final = "SHADOWSYNC_CHAOS"
LOOK_SECONDS: Final = 0.05
END_SECONDS: Final = 10.0
TRIES: Final = 3


@dataclass
class FaultedJob:
    """Result of one job with faults.

    Attributes:
        injected: faults that met a living process, with the seconds at which they did.
        missed: faults that came after the job's end, or found no process.
        exit_codes: exit codes of the run and of each resumption or repetition.
        hung: whether nothing was trained for the longest time allowed; the job was then ended.
        left: number of processes that outlived the job, and were killed.
        folder: folder of the last run; None if it had none.
        folders: folders of all of its runs.
        last_line: last line of the last run's output.
    """

    injected: list[tuple[ProcessFault, float]] = field(default_factory=list)
    missed: list[ProcessFault] = field(default_factory=list)
    exit_codes: list[int] = field(default_factory=list)
    hung: bool = False
    left: int = 0
    folder: Path | None = None
    folders: list[Path] = field(default_factory=list)
    last_line: str = ""


class JobRunner:
    """Run jobs as processes in sessions of their own, and inject faults.

    Args:
        source: the job's file, and the settings that override it.
        directory: directory for logs; run folders are under `runs` in it.
        hang_seconds: time without a trained batch after which a job counts as hung.
    """

    def __init__(self, source: Sequence[str], directory: Path, hang_seconds: float) -> None:
        self._source = source
        self._runs, self._logs = directory / "runs", directory / "logs"
        self._hang = hang_seconds

    def run(self, name: str, faults: Sequence[ProcessFault] = (), batches: int = 0) -> FaultedJob:
        """Run the job with its faults; resume it whenever it stops.

        A job without a checkpoint is run again. `batches` is the number of the whole job's batches, by which
        faults are timed.
        """
        done = FaultedJob()
        job_file, *overrides = self._source
        overrides += [f"run.name={name}", f"run.directory={self._runs}"]
        command = ["run", job_file, *(part for one in overrides for part in ("--set", one))]
        self._once(command, name, done, [(fault, fault.after * batches) for fault in faults])
        while _died(done) and len(done.exit_codes) <= TRIES:
            saved = done.folder is not None and (done.folder / "checkpoint").exists()
            self._once(["resume", str(done.folder)] if saved else command, name, done, [])
        return done

    def _once(
        self, command: list[str], name: str, done: FaultedJob, due: list[tuple[ProcessFault, float]]
    ) -> None:
        marker, before = uuid4().hex, self._folders()
        log = self._logs / f"{name}-{len(done.exit_codes)}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            process = subprocess.Popen(
                python(CLI, *command, "--quiet"),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, MARKER: marker},
            )
        try:
            self._watch(process, done, due, before)
            done.exit_codes.append(process.wait())
        finally:
            if process.poll() is None:
                process.kill()
            done.left += _end_marked(marker)
        done.missed += [fault for fault, _ in due]
        done.last_line = last_line(log)
        done.folder = next(iter(self._folders() - before), None)
        if done.folder is not None:
            done.folders.append(done.folder)

    def _watch(
        self,
        process: subprocess.Popen[bytes],
        done: FaultedJob,
        due: list[tuple[ProcessFault, float]],
        before: set[Path],
    ) -> None:
        """Inject faults when they are due; end the job if it hangs."""
        began = moved_at = time.monotonic()
        moved, stopped = 0, Stopped()
        while process.poll() is None:
            now = time.monotonic()
            folder = next(iter(self._folders() - before), None)
            trained, acknowledged = _batches(folder) if folder is not None else (0, 0)
            if acknowledged != moved or stopped:
                moved, moved_at = acknowledged, now
            while due and folder is not None and trained >= due[0][1]:
                fault, _ = due.pop(0)
                if stopped.inject(process.pid, fault, now):
                    done.injected.append((fault, now - began))
                else:
                    done.missed.append(fault)
            stopped.resume(now)
            if now - moved_at > self._hang:
                done.hung = True
                process.kill()
            time.sleep(LOOK_SECONDS)

    def _folders(self) -> set[Path]:
        if not self._runs.exists():
            return set()
        return {path for path in self._runs.iterdir() if not path.is_symlink()}


class Stopped:
    """Stopped processes, each with the time at which it continues."""

    def __init__(self) -> None:
        self._until: list[tuple[float, psutil.Process]] = []

    def __bool__(self) -> bool:
        return bool(self._until)

    def inject(self, supervisor: int, fault: ProcessFault, now: float) -> bool:
        """Inject a fault into one of the supervisor's processes; return whether there was one."""
        found = processes_of_role(supervisor, fault.role)
        if not found:
            return False
        victim = found[fault.place % len(found)]
        try:
            victim.send_signal(signal.SIGSTOP if fault.stop_seconds else signal.SIGKILL)
        except psutil.NoSuchProcess:
            return False
        if fault.stop_seconds:
            self._until.append((now + fault.stop_seconds, victim))
        return True

    def resume(self, now: float) -> None:
        """Continue the processes whose time has come."""
        for until, victim in [one for one in self._until if now >= one[0]]:
            self._until.remove((until, victim))
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGCONT)


def _died(done: FaultedJob) -> bool:
    return not done.hung and done.exit_codes[-1] == ExitCode.STOPPED_BY_DEATH


def _batches(folder: Path) -> tuple[int, int]:
    """Return the numbers of a run's trained batches and of their acknowledgements."""
    path = folder / "ledger.sqlite"
    if not path.exists():
        return 0, 0
    with contextlib.suppress(sqlite3.OperationalError), closing(_open(path)) as database:
        sums = "SELECT count(*), coalesce(sum(acknowledgements), 0) FROM batches"
        batches, acknowledged = database.execute(sums).fetchone()
        return int(batches), int(acknowledged)
    return 0, 0


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)


def processes_of_role(supervisor: int, role: str) -> list[psutil.Process]:
    """Return the living processes of a role, by process id."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(supervisor).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if child.cmdline()[1:4] == ["-m", CLI, role]:
                    found.append(child)
    return sorted(found, key=lambda child: child.pid)


def _end_marked(marker: str) -> int:
    """Wait for the end of a job's processes; kill and count the rest."""
    latest = time.monotonic() + END_SECONDS
    while (left := _marked(marker)) and time.monotonic() < latest:
        time.sleep(LOOK_SECONDS)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return len(left)


def _marked(marker: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            if process.environ().get(MARKER) == marker and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
