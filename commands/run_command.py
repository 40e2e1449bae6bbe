"""Running a job with progress on the terminal, for `run` and `resume`."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..nodes.supervisor.starter import Starter
    from ..pipeline.config.job import Job
    from ..pipeline.errors import ExitCode
    from ..pipeline.report.model import Report


def run_and_exit(
    read_job: Callable[[], Job], command: str, *, quiet: bool, supervised: bool = False
) -> NoReturn:
    """Read a job, run it on this machine, and exit.

    Shows progress and report. Exits with the job's exit code. `command` names the command in messages.
    """
    from rich.console import Console

    from ..pipeline.report.quality_warnings import bad_row_warnings
    from ..pipeline.report.run_folder import shown
    from ..pipeline.report.terminal import print_report

    code, text, report, folder = supervise(read_job, quiet=quiet, supervised=supervised)
    if report is not None and folder is not None and not quiet:
        print_report(report, Console())
        click.echo(f"report: {shown(folder / 'report.md')}")
    if report is not None and quiet:
        for warning in bad_row_warnings(report.examples):
            click.echo(f"shadowsync {command}: {warning}", err=True)
    end(command, code, text)


def end(command: str, code: ExitCode, text: str) -> NoReturn:
    """Print `text`, if any, and exit with a job's exit code."""
    if text:
        click.echo(f"shadowsync {command}: {text}", err=True)
    sys.exit(int(code))


def supervise(
    read_job: Callable[[], Job], *, quiet: bool, supervised: bool, profile_seconds: float | None = None
) -> tuple[ExitCode, str, Report | None, Path | None]:
    """Run a job to its end.

    Shows its progress on the terminal unless `quiet`. Returns the exit code, one line for the user, the
    report if there is one, and the run's folder.
    """
    from ..nodes.runtime.main_loop import run_interruptible
    from ..nodes.supervisor.starter import make_starter

    # The starter's processes import while the job is read.
    with closing(make_starter()) as starter:
        job = read_job()
        return run_interruptible(lambda: _supervised(job, starter, quiet, supervised, profile_seconds))


async def _supervised(
    job: Job, starter: Starter, quiet: bool, supervised: bool, profile_seconds: float | None
) -> tuple[ExitCode, str, Report | None, Path | None]:
    from ..nodes.supervisor.supervisor import Supervisor
    from ..pipeline.jobfile.extras import left_out
    from ..watch.live import display

    if not quiet and (missing := left_out(job)):
        click.echo(missing, err=True)
    shown = display(quiet=quiet)
    supervisor = Supervisor(
        job,
        shown,
        starter,
        supervised=supervised,
        progress_seconds=shown.period_seconds,
        began=shown.begin,
        profile_seconds=profile_seconds,
    )
    try:
        return *(await supervisor.run()), supervisor.folder
    finally:
        shown.close()
