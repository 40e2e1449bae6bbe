"""A whole job from Python: `shadowsync.run`, and the job that resumes a run."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from ...pipeline.checkpoint.saved import open_saved, storage_of
from ...pipeline.config.job import Job
from ...pipeline.config.storage_url import is_url
from ...pipeline.errors import CheckpointError, ExitCode, ShadowSyncError
from ...pipeline.jobfile.load import job_of_tree, load_job, with_present_keys, without_one_trainer_sync
from ...pipeline.jobfile.named_code import code_of, require_trusted
from ...pipeline.jobfile.tables_in_memory import with_written_tables
from ...pipeline.report.document import Report
from ...pipeline.report.rendering.notebook import FolderReport
from ...pipeline.wire.tasks import post
from ...watch.terminal.live import Display, display
from ..runtime.main_loop import run_interruptible
from ..sync_rules import with_sync_nodes
from .starter import Starter, make_starter
from .supervisor import ShowStatus, Supervisor

JobLike: TypeAlias = str | PathLike[str] | Mapping[str, Any] | Job
RunResult: TypeAlias = tuple[ExitCode, str, Report | None]


class RunFailed(ShadowSyncError):
    """A job did not end with exit code 0.

    The job was stopped or interrupted, or finished although a node died.

    Attributes:
        report: report of the run; None if there is none.
        exit_code: exit code that `shadowsync run` would have.
    """

    def __init__(self, text: str, report: Report | None, exit_code: ExitCode) -> None:
        super().__init__(text or (report.outcome if report is not None else exit_code.name.lower()))
        self.report = report
        self.exit_code = exit_code


def run(
    job: JobLike,
    *,
    overrides: Iterable[str] = (),
    progress: ShowStatus | None = None,
    quiet: bool = False,
) -> Report:
    """Run a job as processes of this machine; return its report.

    Any thread may call, also one with a running event loop (a notebook), which then waits. On the main
    thread, Ctrl-C interrupts the job as it does `shadowsync run`: once for a checkpoint and a report, twice
    for the end at once; the handlers that were there before are put back afterwards.

    Args:
        job: the path of a job file; or the same as a dict of sections, whose relative paths are taken
            against the working directory; or a Job. In a dict, `path`, `validation_path` and `eval_path` of
            `data`, and `items` of `validation`, may be tables of pandas, polars or pyarrow, which are written
            to `run.directory`/data.
        overrides: "section.key=value" each, as `--set` takes them; none with a Job.
        progress: called every few seconds, on another thread where the caller's has a running loop, with
            what the coordinator's `status` answers. An exception of it interrupts the job, and is raised
            when that has ended.
        quiet: shows nothing; otherwise progress goes to standard error, as that of `shadowsync run` does.

    Returns:
        The report; `report.folder` is the run's folder, for `shadowsync.load`.

    Raises:
        JobFileError: the job cannot be used; nothing was started.
        RunFailed: it ended with another exit code than 0; it has the report, if there is one.
        ShadowSyncError: another of its errors, named after what was wrong.
    """
    # The starter imports while the job is read.
    with closing(make_starter()) as starter:
        resolved = with_sync_nodes(read_job(job, overrides), may_import=True)
        caller = _Caller(progress, display(quiet=quiet), starter)
        code, text, report = _supervise(resolved, caller)
    if caller.error is not None:
        raise caller.error
    if code != ExitCode.OK or report is None:
        raise RunFailed(text, report, code)
    return report


def read_job(job: JobLike, overrides: Iterable[str] = ()) -> Job:
    """Read a job as `run` takes it. Raises as `run`, and TypeError for overrides of a Job."""
    overrides = list(overrides)
    if isinstance(job, Job):
        if overrides:
            raise TypeError("overrides change a job file or a dict; change a Job with model_copy")
        return job
    if isinstance(job, Mapping):
        return job_of_tree(with_written_tables(job, overrides), overrides)
    return load_job(str(job), overrides)


class _Caller:
    """The caller's side of a run: gets its progress, and may interrupt it.

    Attributes:
        error: exception of the callback.
    """

    def __init__(self, progress: ShowStatus | None, shown: Display, starter: Starter) -> None:
        self._progress = progress
        self._starter = starter
        self._shown = shown
        self._supervisor: Supervisor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self.error: BaseException | None = None

    async def run_job(self, job: Job) -> RunResult:
        """Run the job on this thread's loop."""
        self._loop = asyncio.get_running_loop()
        seconds = self._shown.period_seconds
        self._supervisor = Supervisor(
            job, self._on_progress, self._starter, progress_seconds=seconds, began=self._shown.begin
        )
        self._ready.set()
        try:
            code, text, report = await self._supervisor.run()
        finally:
            self._shown.close()
        folder = self._supervisor.folder
        if report is not None and folder is not None:
            report = FolderReport.of(report, folder.absolute())
        return code, text, report

    def interrupt(self) -> None:
        """Interrupt the job from another thread, as Ctrl-C does."""
        if self._ready.wait(1.0) and self._loop is not None and self._supervisor is not None:
            post(self._loop, self._supervisor.interrupt)

    def _on_progress(self, status: dict[str, Any]) -> None:
        if self.error is not None:
            return
        try:
            if self._progress is not None:
                self._progress(status)
        except BaseException as error:  # noqa: BLE001
            # It belongs to the caller, who gets it when the processes have ended.
            self.error = error
            assert self._supervisor is not None
            self._supervisor.interrupt()
        # Last: an error of the display is only logged.
        self._shown(status)


def _supervise(job: Job, caller: _Caller) -> RunResult:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_interruptible(lambda: caller.run_job(job))
    with ThreadPoolExecutor(1, "shadowsync-run") as pool:
        ended = pool.submit(run_interruptible, lambda: caller.run_job(job))
        while True:
            try:
                return ended.result()
            except KeyboardInterrupt:
                caller.interrupt()


def resumed_job(location: str, overrides: Iterable[str], which: str, *, trust: bool = False) -> Job:
    """Make the job that resumes a run from its last, its best or a kept checkpoint.

    `location` is the run's folder, and the new one is beside it; or the URL of a storage, or of a checkpoint
    in it, where the job goes on writing. `trust`: it may execute code that nobody named on this machine.

    Raises CheckpointError if the folder is no run's or there is no such checkpoint, StorageError,
    JobFileError for overrides that cannot be used and for code that is not trusted. What else may differ is
    checked by the coordinator, see `RestoredRun`.
    """
    if storage_of(location):
        # That one, and no later one, which this job itself will write.
        place, manifest = open_saved(location, which=which)
        start = {"start.checkpoint": str(place)}
        if not is_url(location):
            start["run.directory"] = str(Path(location).resolve().parent)
        return _resumed(dict(manifest.job), start, overrides, location, trust=trust)
    folder = Path(location).resolve()
    open_saved(folder, which=which)
    try:
        tree = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"its job.json cannot be read ({error})", where=str(folder), remedy="give the folder of a run"
        ) from error
    resumed = {"run.directory": str(folder.parent), "start.checkpoint": str(folder), "start.which": which}
    return _resumed(tree, resumed, overrides, location, trust=trust)


def _resumed(
    tree: dict[str, Any], resumed: dict[str, str], overrides: Iterable[str], location: str, *, trust: bool
) -> Job:
    overrides = list(overrides)
    tree = without_one_trainer_sync(with_present_keys(tree))
    tree.pop("start", None)
    settings = [f"{key}={json.dumps(value)}" for key, value in resumed.items()]
    job = job_of_tree(tree, [*settings, "start.resume=true", *overrides])
    named_here = {text.partition("=")[0].strip() for text in overrides}
    saved = {key: name for key, name in code_of(job).items() if key not in named_here}
    require_trusted(saved, location, trust=trust)
    return with_sync_nodes(job, may_import=True)
