"""Options of several commands about a job: job, overrides, profile, page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ...pipeline.config.job import Job

F = TypeVar("F", bound=Callable[..., Any])


def job_options(command: F) -> F:
    """Add JOB.toml and --set."""
    command = click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Override a setting of the job file.",
    )(command)
    return click.argument("job_file", metavar="JOB.toml", type=click.Path())(command)


def profile_option(command: F) -> F:
    """Add `--profile`, the run that measured the job."""
    return click.option(
        "--profile",
        required=True,
        metavar="RUN",
        type=click.Path(path_type=Path),
        help="Run folder of `shadowsync profile` on this job.",
    )(command)


def web_option(command: F) -> F:
    """Add `--web`, a key of the job file's [watch]."""
    return click.option(
        "--web",
        metavar="[HOST:]PORT",
        help="Serve the job's web page there; without HOST, to this machine only. [default: watch.web]",
    )(command)


def web_override(web: str | None) -> list[str]:
    """Turn `--web` into overrides of the job file."""
    import json

    return [] if web is None else [f"watch.web={json.dumps(web)}"]


def supervised_option(command: F) -> F:
    """Add the hidden `--supervised`: the end of standard input interrupts the command."""
    return click.option("--supervised", is_flag=True, hidden=True)(command)


def job_of(
    job_file: str,
    overrides: tuple[str, ...],
    *,
    may_import: bool = True,
    resolved: bool = False,
    trust: bool = True,
) -> Job:
    """Load the job from TOML, or from the JSON of a resolved one.

    A run folder has such JSON in job.json; a supervisor gives its nodes a file of any name, and says that it
    is `resolved`. `may_import` is for `with_sync_nodes`. Without `trust` the job in a run folder may name
    only code that this user has named on this machine. Raises JobFileError for overrides of JSON, and for
    code that is not trusted.
    """
    from ...nodes.launch import with_sync_nodes
    from ...pipeline.errors import JobFileError
    from ...pipeline.jobfile.load import load_job, load_resolved
    from ...pipeline.jobfile.named_code import code_of, is_in_run_folder, require_trusted

    if not resolved and not job_file.endswith(".json"):
        return with_sync_nodes(load_job(job_file, overrides), may_import=may_import)
    if overrides:
        raise JobFileError("--set cannot change a resolved job", where=job_file, remedy="give the TOML file")
    job = load_resolved(job_file)
    if not resolved and is_in_run_folder(Path(job_file)):
        require_trusted(code_of(job), job_file, trust=trust)
    return job
