"""`shadowsync profile`: a short run of a job that finds its bottleneck."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import click

from ..key import security_options
from ..options import (
    NumberRange,
    job_of,
    job_options,
    network_options,
    network_overrides,
    supervised_option,
    trust_option,
    web_option,
    web_override,
)
from .run import end, supervise

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...pipeline.config.job import Job

PROFILED = "finished early: profiled for "


@click.command()
@job_options
@network_options
@security_options
@web_option
@click.option(
    "--seconds",
    default=20.0,
    show_default=True,
    type=NumberRange(min=5.0, max=3600.0),
    help="Seconds to measure once all trainers train.",
)
@click.option("--quiet", is_flag=True, help="No progress on the terminal.")
@trust_option
@supervised_option
def profile(
    job_file: str,
    overrides: tuple[str, ...],
    seconds: float,
    quiet: bool,
    trust: bool,
    supervised: bool,
    web: str | None,
    **network: str | None,
) -> None:
    """Run a job for a short while and find its bottleneck.

    Starts the job as `run` does, measures every node, and ends it. The run's folder then has profile.md,
    profile.json, and a trace of one second of every node, which ui.perfetto.dev and chrome://tracing open.
    """
    settings = (*overrides, *network_overrides(network), *web_override(web))
    run_profile(lambda: job_of(job_file, settings, trust=trust), seconds, quiet=quiet, supervised=supervised)


def run_profile(
    read_job: Callable[[], Job], seconds: float, *, quiet: bool, supervised: bool = False
) -> NoReturn:
    """Run the job, print its profile, and exit with its exit code.

    Raises DataError if the job ended before anything could be measured, ClusterError if no trainer
    answered.
    """
    from rich.console import Console

    from ...pipeline.errors import ClusterError, DataError, ExitCode
    from ...pipeline.jobfile.extras import require_extra
    from ...pipeline.jobfile.load import load_resolved
    from ...pipeline.performance.document import PROFILE_JSON, PROFILE_MARKDOWN, TRACE_JSON, read_profile
    from ...pipeline.performance.render import print_profile
    from ...pipeline.report.run_folders.run_folder import shown

    require_extra("shadowsync profile", "plots")
    code, text, report, folder = supervise(
        read_job, quiet=quiet, supervised=supervised, profile_seconds=seconds
    )
    if folder is not None and (folder / PROFILE_JSON).exists():
        profile = read_profile(folder / PROFILE_JSON)
        print_profile(profile, Console())
        click.echo(f"profile: {shown(folder / PROFILE_MARKDOWN)}")
        if profile.trace is not None:
            click.echo(f"trace, for https://ui.perfetto.dev: {shown(folder / TRACE_JSON)}")
    elif code is ExitCode.OK and report is not None and report.outcome.startswith(PROFILED):
        raise ClusterError(
            "no trainer answered in time, so nothing was measured",
            where=shown(folder) if folder is not None else "",
            remedy="measure for longer (--seconds), or check what else runs on these machines",
        )
    elif code is ExitCode.OK:
        raise DataError(
            "the job ended before anything could be measured",
            where=", ".join(load_resolved(str(folder / "job.json")).data.path) if folder is not None else "",
            remedy="give it more data, or raise data.epochs",
        )
    end("profile", code, text)
