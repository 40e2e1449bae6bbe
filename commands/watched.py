"""Running a job to its end in front of somebody: what `run` and `resume` share."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from pathlib import Path

    from ..pipeline.config.job import Job
    from ..pipeline.errors import ExitCode
    from ..pipeline.report.model import Report


def run_watched(job: Job, command: str, *, quiet: bool, supervised: bool = False) -> NoReturn:
    """Checks the job, starts all of its roles on this machine, shows their progress and their report, and
    ends this process with the job's exit code. `command` is what the user called."""
    from rich.console import Console

    from ..pipeline.report.run_folder import shown
    from ..pipeline.report.terminal import print_report

    code, text, report, folder = supervise(job, quiet=quiet, supervised=supervised)
    if report is not None and folder is not None and not quiet:
        print_report(report, Console())
        click.echo(f"report: {shown(folder / 'report.md')}")
    end(command, code, text)


def end(command: str, code: ExitCode, text: str) -> NoReturn:
    """Ends this process with the exit code of a job, and says why if there is something to say."""
    if text:
        click.echo(f"shadowsync {command}: {text}", err=True)
    sys.exit(int(code))


def supervise(
    job: Job, *, quiet: bool, supervised: bool, profile_seconds: float | None = None
) -> tuple[ExitCode, str, Report | None, Path | None]:
    """Runs a job to its end, with its progress on the terminal unless `quiet`: the exit code, one line for
    the user, the report if there is one, and the run's folder."""
    from ..nodes.run_job import prepare
    from ..nodes.supervisor import Supervisor
    from ..pipeline.extras import left_out
    from ..watch.live import display

    prepare(job)
    if not quiet and (missing := left_out(job)):
        click.echo(missing, err=True)

    async def accompanied() -> Any:
        shown = display(quiet=quiet)
        supervisor = Supervisor(
            job,
            shown,
            supervised=supervised,
            progress_seconds=shown.period_seconds,
            began=shown.begin,
            profile_seconds=profile_seconds,
        )
        try:
            return *(await supervisor.run()), supervisor.folder
        finally:
            shown.close()

    result: tuple[ExitCode, str, Report | None, Path | None] = asyncio.run(accompanied())
    return result
