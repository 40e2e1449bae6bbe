"""One job with injected faults."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

import psutil

from ...nodes.runtime.process import CLI, python
from ...nodes.supervisor.emulation import CONTROL_VARIABLE
from ...pipeline.errors import ExitCode
from ...pipeline.text.wall_clock import CLOCK_FAULTS_VARIABLE
from ...pipeline.wire.endpoints import local_address
from ..job_process import last_line
from ..network.link_faults import LINK_FAULTS
from .injector import Injector
from .schedule import ScheduledFault

MARKER: Final = "SHADOWSYNC_CHAOS"
LOOK_SECONDS: Final = 0.05
END_SECONDS: Final = 10.0
TRIES: Final = 3
# All links of a job with faults of links lead through its relay, which adds nothing to them otherwise.
THROUGH_RELAY: Final = ("network.delay=0ms", "network.delay_links=all", "network.bandwidth=")


@dataclass
class FaultedJob:
    """Result of one job with faults.

    Attributes:
        injected: faults that met a living process or an open connection, with the seconds at which they did.
        missed: faults that came after the job's end, or found neither.
        exit_codes: exit codes of the run and of each resumption or repetition.
        hung: whether nothing was trained for the longest time allowed; the job was then ended.
        left: number of processes that outlived the job, and were killed.
        folder: folder of the last run; None if it had none.
        folders: folders of all of its runs.
        last_line: last line of the last run's output.
    """

    injected: list[tuple[ScheduledFault, float]] = field(default_factory=list)
    missed: list[ScheduledFault] = field(default_factory=list)
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
        nodes: number of nodes by role.
        directory: directory for logs; run folders are under `runs` in it.
        hang_seconds: time without a trained batch after which a job counts as hung.
        start_seconds: how much longer it may take to its first one.
    """

    def __init__(
        self,
        source: Sequence[str],
        nodes: Mapping[str, int],
        directory: Path,
        hang_seconds: float,
        start_seconds: float,
    ) -> None:
        self._source, self._nodes = source, nodes
        self._runs, self._logs = directory / "runs", directory / "logs"
        self._hang, self._start = hang_seconds, start_seconds

    def run(self, name: str, faults: Sequence[ScheduledFault] = (), batches: int = 0) -> FaultedJob:
        """Run the job with its faults; resume it whenever it stops.

        A job without a checkpoint is run again. `batches` is the number of the whole job's batches, by which
        faults are timed.
        """
        done = FaultedJob()
        job_file, *overrides = self._source
        overrides += [f"run.name={name}", f"run.directory={self._runs}"]
        if any(fault.kind in LINK_FAULTS for fault in faults):
            overrides += THROUGH_RELAY
        command = ["run", job_file, *(part for one in overrides for part in ("--set", one))]
        self._once(command, name, done, [(fault, fault.after * batches) for fault in faults])
        while _can_go_on(done) and len(done.exit_codes) <= TRIES:
            saved = done.folder is not None and (done.folder / "checkpoint").exists()
            self._once(["resume", str(done.folder), "--trust"] if saved else command, name, done, [])
        return done

    def _once(
        self, command: list[str], name: str, done: FaultedJob, due: list[tuple[ScheduledFault, float]]
    ) -> None:
        marker, control, before = uuid4().hex, local_address(uuid4().hex), self._folders()
        log = self._logs / f"{name}-{len(done.exit_codes)}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="shadowsync-clocks-") as clocks:
            variables = {MARKER: marker, CONTROL_VARIABLE: control, CLOCK_FAULTS_VARIABLE: clocks}
            with log.open("wb") as file:
                process = subprocess.Popen(
                    python(CLI, *command, "--quiet", "--supervised"),
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, **variables},
                )
            try:
                injector = Injector(process.pid, control, self._nodes, Path(clocks))
                self._watch(process, injector, done, due, before)
                done.exit_codes.append(process.wait())
            finally:
                if process.poll() is None:
                    process.kill()
                assert process.stdin is not None
                process.stdin.close()
                done.left += _end_marked(marker)
        done.missed += [fault for fault, _ in due]
        done.last_line = last_line(log)
        done.folder = next(iter(self._folders() - before), None)
        if done.folder is not None:
            done.folders.append(done.folder)

    def _watch(
        self,
        process: subprocess.Popen[bytes],
        injector: Injector,
        done: FaultedJob,
        due: list[tuple[ScheduledFault, float]],
        before: set[Path],
    ) -> None:
        """Inject faults when they are due; end the job if it hangs."""
        began = moved_at = time.monotonic()
        moved = 0
        while process.poll() is None:
            now = time.monotonic()
            folder = next(iter(self._folders() - before), None)
            trained, acknowledged = _batches(folder) if folder is not None else (0, 0)
            if acknowledged != moved or injector.active:
                moved, moved_at = acknowledged, now
            while due and folder is not None and trained >= due[0][1]:
                fault, _ = due.pop(0)
                if injector.inject(fault, now):
                    done.injected.append((fault, now - began))
                else:
                    done.missed.append(fault)
            injector.end(now)
            if now - moved_at > self._hang + (0.0 if acknowledged else self._start):
                done.hung = True
                process.kill()
            time.sleep(LOOK_SECONDS)

    def _folders(self) -> set[Path]:
        if not self._runs.exists():
            return set()
        return {path for path in self._runs.iterdir() if not path.is_symlink()}


def _can_go_on(done: FaultedJob) -> bool:
    stopped = (ExitCode.STOPPED_BY_DEATH, ExitCode.RESOURCES)
    return not done.hung and done.exit_codes[-1] in stopped


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
