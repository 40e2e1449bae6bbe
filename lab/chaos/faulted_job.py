"""One job with injected faults."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

import psutil

from ...nodes.runtime.process import CLI, python
from ...nodes.supervisor.emulation import CONTROL_VARIABLE
from ...pipeline.errors import ExitCode
from ...pipeline.text.wall_clock import CLOCK_FAULTS_VARIABLE
from ...pipeline.wire.endpoints import local_address
from ..job_process import last_line
from .due_faults import DueFaults, FaultsOfJob
from .injector import Injector
from .schedule import ScheduledFault

MARKER: Final = "SHADOWSYNC_CHAOS"
LOOK_SECONDS: Final = 0.05
# Looks at the ledger of a long job take at most this share of a core.
LOOK_SHARE: Final = 0.05
END_SECONDS: Final = 10.0
TRIES: Final = 3
# All links of a job with faults of links lead through its relay, which adds nothing to them otherwise.
THROUGH_RELAY: Final = ("network.delay=0ms", "network.delay_links=all", "network.bandwidth=")
_BY_TRAINER: Final = (
    "SELECT trainer, count(*), sum(acknowledgements), sum(examples) FROM batches GROUP BY trainer"
)


@dataclass(frozen=True)
class Progress:
    """What a run has trained.

    Attributes:
        batches: trained batches, each counted once.
        acknowledgements: how often batches were trained.
        examples: examples of these batches, each counted once.
        trainers: names of the trainers that have trained any.
    """

    batches: int = 0
    acknowledgements: int = 0
    examples: int = 0
    trainers: frozenset[str] = frozenset()


def progress_of(folder: Path) -> Progress | None:
    """Read a run's progress; None without a ledger, and while its file cannot be read."""
    path = folder / "ledger.sqlite"
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)) as database:
            rows = database.execute(_BY_TRAINER).fetchall()
    except sqlite3.OperationalError:
        return None
    batches, acknowledgements, examples = (sum(row[column] for row in rows) for column in (1, 2, 3))
    return Progress(batches, acknowledgements, examples, frozenset(row[0] for row in rows))


class InjectedFault(NamedTuple):
    """A fault that met a living process or an open connection.

    Attributes:
        seconds: since its run was started.
        trained_seconds: from the job's first trained batch to the last one by then.
        examples: examples that its run had trained by then, each counted once.
    """

    fault: ScheduledFault
    seconds: float
    trained_seconds: float = 0.0
    examples: int = 0


@dataclass
class FaultedJob:
    """Result of one job with faults.

    Attributes:
        injected: faults that met a living process or an open connection.
        missed: faults that came after the job's end, or found neither.
        exit_codes: exit codes of the run and of each resumption or repetition.
        hung: whether nothing was trained for the longest time allowed; the job was then ended.
        left: number of processes that outlived the job, and were killed.
        folder: folder of the last run; None if it had none.
        folders: folders of all of its runs.
        last_line: last line of the last run's output.
        trained_seconds: from its first trained batch to the last one, with the time until it was resumed.
        run_ends: of each run, these seconds and its examples, at its last batch.
        replaced_seconds: from each kill of a trainer until one that is new had trained a batch.
        cpu_seconds: CPU time of all its processes.
    """

    injected: list[InjectedFault] = field(default_factory=list)
    missed: list[ScheduledFault] = field(default_factory=list)
    exit_codes: list[int] = field(default_factory=list)
    hung: bool = False
    left: int = 0
    folder: Path | None = None
    folders: list[Path] = field(default_factory=list)
    last_line: str = ""
    trained_seconds: float = 0.0
    run_ends: list[tuple[float, int]] = field(default_factory=list)
    replaced_seconds: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0

    def report(self) -> dict[str, Any] | None:
        """Read the report of the last run; None if it has none."""
        return None if self.folder is None else report_of(self.folder)


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

    def run(
        self,
        name: str,
        faults: DueFaults | None = None,
        *,
        examples: int | None = None,
        through_relay: bool = False,
    ) -> FaultedJob:
        """Run the job with its faults; resume it whenever it stops.

        A job without a checkpoint is run again; one that has trained `examples`, its whole input, has nothing
        left to resume. Faults of links need all links to lead `through_relay`.
        """
        done, clock, due = FaultedJob(), _Clock(), faults or FaultsOfJob((), 0)
        job_file, *overrides = self._source
        overrides += [f"run.name={name}", f"run.directory={self._runs}"]
        if through_relay:
            overrides += THROUGH_RELAY
        command = ["run", job_file, *(part for override in overrides for part in ("--set", override))]
        before = _cpu_seconds_of_children()
        self._once(command, name, done, due, clock)
        while _can_go_on(done, examples) and len(done.exit_codes) <= TRIES:
            saved = done.folder is not None and (done.folder / "checkpoint").exists()
            self._once(["resume", str(done.folder), "--trust"] if saved else command, name, done, due, clock)
        done.trained_seconds = clock.trained_seconds
        done.cpu_seconds = _cpu_seconds_of_children() - before
        return done

    def _once(self, command: list[str], name: str, done: FaultedJob, due: DueFaults, clock: _Clock) -> None:
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
                run = _WatchedRun(injector, due, done, clock)
                self._watch(process, run, before)
                done.exit_codes.append(process.wait())
            finally:
                if process.poll() is None:
                    process.kill()
                assert process.stdin is not None
                process.stdin.close()
                done.left += _end_marked(marker)
        run.end()
        done.last_line = last_line(log)
        done.folder = next(iter(self._folders() - before), None)
        if done.folder is not None:
            done.folders.append(done.folder)

    def _watch(self, process: subprocess.Popen[bytes], run: _WatchedRun, before: set[Path]) -> None:
        """Inject faults when they are due; end the job if it hangs."""
        began = moved_at = time.monotonic()
        moved = 0
        while process.poll() is None:
            now = time.monotonic()
            folder = next(iter(self._folders() - before), None)
            if folder is not None and (progress := progress_of(folder)) is not None:
                run.advance(progress, now, began)
            acknowledged = run.progress.acknowledgements
            if acknowledged != moved or run.injector.active:
                moved, moved_at = acknowledged, now
            run.injector.end(now)
            if now - moved_at > self._hang + (0.0 if acknowledged else self._start):
                run.done.hung = True
                process.kill()
            time.sleep(max(LOOK_SECONDS, (time.monotonic() - now) / LOOK_SHARE))

    def _folders(self) -> set[Path]:
        if not self._runs.exists():
            return set()
        return {path for path in self._runs.iterdir() if not path.is_symlink()}


@dataclass
class _Clock:
    """When a job trained, by `time.monotonic`."""

    first_batch_at: float | None = None
    last_batch_at: float = 0.0

    @property
    def trained_seconds(self) -> float:
        return 0.0 if self.first_batch_at is None else self.last_batch_at - self.first_batch_at


class _WatchedRun:
    """One run of a job as it goes on, and the faults that are injected into it."""

    def __init__(self, injector: Injector, due: DueFaults, done: FaultedJob, clock: _Clock) -> None:
        self.injector, self.done = injector, done
        self._due, self._clock = due, clock
        self._killed_at: list[float] = []
        self.progress = Progress()

    def advance(self, progress: Progress, now: float, began: float) -> None:
        """Take what is trained by `now`, and inject what is due; the run `began` at that time."""
        clock = self._clock
        if progress.acknowledgements != self.progress.acknowledgements:
            clock.last_batch_at = now
            if clock.first_batch_at is None:
                clock.first_batch_at = now
        new = progress.trainers - self.progress.trainers
        for killed_at, _ in zip(list(self._killed_at), new, strict=False):
            self._killed_at.remove(killed_at)
            self.done.replaced_seconds.append(now - killed_at)
        self.progress = progress
        for fault in self._due.take(progress.batches, clock.trained_seconds):
            if not self.injector.inject(fault, now):
                self.done.missed.append(fault)
                continue
            trained_seconds = clock.trained_seconds
            self.done.injected.append(InjectedFault(fault, now - began, trained_seconds, progress.examples))
            if (fault.role, fault.kind) == ("trainer", "kill"):
                self._killed_at.append(now)

    def end(self) -> None:
        """Give up the faults that cannot come any more, and record where the run ended."""
        self.done.missed += self._due.end_run()
        self.done.run_ends.append((self._clock.trained_seconds, self.progress.examples))


def _cpu_seconds_of_children() -> float:
    """Return the CPU time of this process's children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _can_go_on(done: FaultedJob, examples: int | None) -> bool:
    stopped = (ExitCode.STOPPED_BY_DEATH, ExitCode.RESOURCES)
    return not done.hung and done.exit_codes[-1] in stopped and not has_trained_all(done, examples)


def has_trained_all(done: FaultedJob, examples: int | None) -> bool:
    """Return whether a job that stopped had trained all of its input: it was killed before it was scored."""
    report = done.report()
    return report is not None and report["examples"]["distinct"] + report["restored_examples"] == examples


def report_of(folder: Path) -> dict[str, Any] | None:
    """Read the report of a run; None if it has none."""
    path = folder / "report.json"
    if not path.exists():
        return None
    report: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return report


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
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            if process.environ().get(MARKER) == marker and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes
