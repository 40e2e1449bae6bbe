"""The trials of a study as jobs of this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from ...nodes.runtime.main_loop import run_interruptible
from ...nodes.supervisor.starter import make_starter
from ...nodes.supervisor.supervisor import Supervisor
from ...pipeline.config.job import Job
from ...pipeline.errors import ExitCode, JobFileError
from ...pipeline.input.plan import require_fixed_input, require_ne
from ...pipeline.report.model import Report
from .space import Parameters, trial_job
from .study import Outcome, ReportRung

STATUS_SECONDS: Final = 1.0
TRAINED: Final = (ExitCode.OK, ExitCode.FINISHED_WITH_DEATHS)
"""Exit codes of jobs that trained to their end."""


class RungWatcher:
    """From a job's statuses to the NE at each rung, without I/O.

    The NE at a rung is that of the first point of the curve at or behind it, each batch scored before its
    step. So it is of the same examples in every trial, however late a status comes. It counts once the curve
    has a further point, since the last one still changes.

    Attributes:
        stopped: whether the study has stopped the trial.

    Args:
        shares: of the job's examples at each rung, the least first.
        report: of the study.
    """

    def __init__(self, shares: Sequence[float], report: ReportRung) -> None:
        self._shares = shares
        self._report = report
        self._next = 0
        self.stopped = False

    def is_to_stop(self, status: dict[str, Any]) -> bool:
        """Take a status with whole curves; return whether the trial is to stop."""
        total, curve = status["progress"]["total"], status["curves"].get("ne")
        settled = curve["points"][:-1] if curve is not None else []
        while total and not self.stopped and self._next < len(self._shares):
            at = self._shares[self._next] * total
            reached = next((ne for examples, ne in settled if examples >= at), None)
            if reached is None:
                break
            self.stopped = self._report(self._next, reached)
            self._next += 1
        return self.stopped


class JobTrials:
    """Run trials as jobs, on the main thread.

    Args:
        base: the job whose settings are tried.
        folder: of the study; runs are written below it.
        shares: of a job's examples at each rung.
    """

    def __init__(self, base: Job, folder: Path, shares: Sequence[float]) -> None:
        self._base = base
        self._runs = folder / "runs"
        self._shares = shares

    def __call__(self, number: int, parameters: Parameters, report: ReportRung) -> Outcome:
        """Run a trial; see `Objective`.

        Raises KeyboardInterrupt if Ctrl-C ended it.
        """
        name = f"trial-{number:04d}"
        try:
            job = trial_job(self._base, parameters, name, str(self._runs.absolute()))
        except JobFileError as error:
            return Outcome(None, 0, why=str(error))
        watcher = RungWatcher(self._shares, report)
        code, text, found, folder = run_supervised(job, watcher.is_to_stop)
        relative = f"runs/{folder.name}" if folder is not None else ""
        trained = found.examples.distinct if found is not None else 0
        if watcher.stopped:
            return Outcome(None, trained, stopped=True, folder=relative)
        if code == ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        if found is None or code not in TRAINED:
            why = text or f"exit code {int(code)}"
            return Outcome(None, trained, why=why, folder=relative)
        return Outcome(score_of(found), trained, folder=relative)


def require_tunable(base: Job) -> None:
    """Raise JobFileError for a job whose trials would not end, or would meet."""
    require_fixed_input(base)
    require_ne(base)
    if base.run.storage:
        raise JobFileError(
            f"run.storage = {base.run.storage} given, where the trials' checkpoints would meet",
            remedy='tune with run.storage = "" (--set run.storage="")',
        )


def score_of(report: Report) -> float | None:
    """Return the NE on held-out data, of the best checkpoint if there is one.

    Without held-out data it is that of training.
    """
    return report.headline.ne if report.headline is not None else report.train.ne_progressive


def run_supervised(
    job: Job, is_to_stop: Callable[[dict[str, Any]], bool]
) -> tuple[ExitCode, str, Report | None, Path | None]:
    """Run a job here, and interrupt it when `is_to_stop` says so.

    An exception of `is_to_stop`, also SystemExit, ends the job at once, and is raised when its nodes have
    ended. Any thread may call. Returns the exit code, a line for the user, the report and the run's folder.
    """
    with closing(make_starter()) as starter:
        interrupted = False
        failure: BaseException | None = None

        def progress(status: dict[str, Any]) -> None:
            nonlocal interrupted, failure
            if interrupted:
                return
            try:
                interrupted = is_to_stop(status)
            except BaseException as error:  # noqa: BLE001
                # It is the caller's; on the loop it would leave the nodes behind.
                failure, interrupted = error, True
                supervisor.interrupt()
            if interrupted:
                supervisor.interrupt()

        supervisor = Supervisor(job, progress, starter, progress_seconds=STATUS_SECONDS, with_curves=True)
        code, text, report = run_interruptible(supervisor.run)
    if failure is not None:
        raise failure
    return code, text, report, supervisor.folder
