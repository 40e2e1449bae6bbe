"""`shadowsync run`: a job with progress on the terminal, which `resume` and `profile` show too."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, NoReturn

import click

from ..key import security_options
from ..options import (
    engine_options,
    job_of,
    job_options,
    network_options,
    network_overrides,
    removed_autoscale_options,
    supervised_option,
    trust_option,
    web_option,
    web_override,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ...nodes.supervisor.launcher import Launcher
    from ...nodes.supervisor.starter import Starter
    from ...pipeline.config.job import Job
    from ...pipeline.errors import ExitCode
    from ...pipeline.report.document import Report


@click.command()
@job_options
@network_options
@security_options
@web_option
@engine_options
@removed_autoscale_options
@click.option("--quiet", is_flag=True, help="Show no progress and no report, only errors.")
@trust_option
@supervised_option
def run(
    job_file: str,
    overrides: tuple[str, ...],
    quiet: bool,
    trust: bool,
    supervised: bool,
    web: str | None,
    on: str | None,
    exit_zero_on: tuple[int, ...],
    **network: str | None,
) -> None:
    """Run a whole job on this machine, or with --on on a cluster."""
    settings = (*overrides, *network_overrides(network), *web_override(web))
    run_and_exit(
        lambda: job_of(job_file, settings, trust=trust),
        "run",
        quiet=quiet,
        supervised=supervised,
        on=on,
        exit_zero_on=exit_zero_on,
    )


def run_and_exit(
    read_job: Callable[[], Job],
    command: str,
    *,
    quiet: bool,
    supervised: bool = False,
    on: str | None = None,
    exit_zero_on: tuple[int, ...] = (),
) -> NoReturn:
    """Read a job, run it, and exit.

    It runs on this machine, or on the engine `on`. Shows progress and report. Exits with the job's exit code,
    or 0 if that is one of `exit_zero_on`. `command` names the command in messages.
    """
    from rich.console import Console

    from ...pipeline.report.rendering.quality_warnings import bad_row_warnings
    from ...pipeline.report.rendering.terminal import print_report
    from ...pipeline.report.run_folders.run_folder import shown

    code, text, report, folder = supervise(read_job, quiet=quiet, supervised=supervised, on=on)
    if report is not None and folder is not None and not quiet:
        print_report(report, Console())
        click.echo(f"report: {shown(folder / 'report.md')}")
    if report is not None and quiet:
        for warning in bad_row_warnings(report.examples):
            click.echo(f"shadowsync {command}: {warning}", err=True)
    end(command, code, text, exit_zero_on)


def end(command: str, code: ExitCode, text: str, exit_zero_on: tuple[int, ...] = ()) -> NoReturn:
    """Print `text`, if any, and exit with a job's exit code.

    The code is 0 in place of one of `exit_zero_on`.
    """
    if text:
        click.echo(f"shadowsync {command}: {text}", err=True)
    sys.exit(0 if code in exit_zero_on else int(code))


def supervise(
    read_job: Callable[[], Job],
    *,
    quiet: bool,
    supervised: bool,
    profile_seconds: float | None = None,
    on: str | None = None,
) -> tuple[ExitCode, str, Report | None, Path | None]:
    """Run a job to its end.

    Shows its progress on the terminal unless `quiet`. Returns the exit code, one line for the user, the
    report if there is one, and the run's folder.
    """
    from ...nodes.runtime.main_loop import run_interruptible
    from ...nodes.supervisor.starter import make_starter

    with ExitStack() as stack:
        if on is not None:
            _prepare_engine(on, stack, quiet=quiet)
        # The starter's processes import while the job is read.
        starter = stack.enter_context(closing(make_starter()))
        job, launcher = read_job(), None
        if on is not None:
            job, launcher = _on_cluster(job, starter, stack)
        return run_interruptible(
            lambda: _supervised(job, starter, launcher, quiet, supervised, profile_seconds)
        )


def _prepare_engine(on: str, stack: ExitStack, *, quiet: bool) -> None:
    """Check the engine, and have a key for the job.

    The starter's processes inherit the key.
    """
    from ...deployment.ray.submitting import require_engine

    require_engine(on)
    from ...deployment.ray.held_file import held_key

    made = stack.enter_context(held_key())
    if made and not quiet:
        click.echo(f"made a key for this job; for top and scale on this machine: --key {made}", err=True)


def _on_cluster(job: Job, starter: Starter, stack: ExitStack) -> tuple[Job, Launcher]:
    """Connect to the cluster until the end of `stack`.

    Return the job as its machines take it, and the launcher.
    """
    from ...deployment.ray.bundles import on_machines
    from ...deployment.ray.cluster import connected
    from ...deployment.ray.launcher import RayLauncher
    from ...nodes.supervisor.launcher import LocalLauncher

    job = on_machines(job)
    stack.enter_context(connected())
    return job, RayLauncher(LocalLauncher(starter))


async def _supervised(
    job: Job,
    starter: Starter,
    launcher: Launcher | None,
    quiet: bool,
    supervised: bool,
    profile_seconds: float | None,
) -> tuple[ExitCode, str, Report | None, Path | None]:
    from ...nodes.supervisor.supervisor import Supervisor
    from ...pipeline.jobfile.extras import left_out
    from ...pipeline.jobfile.ineffective import job_warnings
    from ...watch.terminal.live import display

    if not quiet:
        for text in filter(None, (left_out(job), *job_warnings(job))):
            click.echo(text, err=True)
    shown = display(quiet=quiet)
    supervisor = Supervisor(
        job,
        shown,
        starter,
        supervised=supervised,
        progress_seconds=shown.period_seconds,
        began=shown.begin,
        profile_seconds=profile_seconds,
        launcher=launcher,
    )
    try:
        return *(await supervisor.run()), supervisor.folder
    finally:
        shown.close()
