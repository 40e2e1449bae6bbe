"""Options and arguments that several commands take."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

if TYPE_CHECKING:
    from ..pipeline.config.job import Job

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


class Size(click.ParamType[int]):
    """A number of bytes, or a size such as 4GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes; fails as click's own types do."""
        from ..pipeline.text.sizes import parse_size

        if isinstance(value, int):
            return value
        try:
            return int(value) if value.isdecimal() else parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def memory_option(command: F) -> F:
    """Add `--memory`, of a command that opens a run's model."""
    return click.option(
        "--memory",
        "memory_bytes",
        type=Size(),
        metavar="SIZE",
        help="Most memory for the tables, such as 4GiB; 0 for none. Larger ones are read from a file on disk,"
        " in the job's embedding.folder if this machine has it, else in /var/tmp. [default: what is"
        " available]",
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
    trust: bool = False,
) -> Job:
    """Load the job from TOML, or from the JSON of a resolved one.

    A run folder has such JSON in job.json; a supervisor gives its nodes a file of any name, and says that it
    is `resolved`. `may_import` is for `with_sync_nodes`. Without `trust` the job in a run folder may name
    only code that this user has named on this machine; a command that executes none of it trusts any.
    Raises JobFileError for overrides of JSON, and for code that is not trusted.
    """
    from ..nodes.sync_rules import with_sync_nodes
    from ..pipeline.errors import JobFileError
    from ..pipeline.jobfile.load import load_job, load_resolved
    from ..pipeline.jobfile.named_code import code_of, is_in_run_folder, require_trusted

    if not resolved and not job_file.endswith(".json"):
        return with_sync_nodes(load_job(job_file, overrides), may_import=may_import)
    if overrides:
        raise JobFileError("--set cannot change a resolved job", where=job_file, remedy="give the TOML file")
    job = load_resolved(job_file)
    if not resolved and is_in_run_folder(Path(job_file)):
        require_trusted(code_of(job), job_file, trust=trust)
    return job


# No click.Path: it would make "s3:/" of "s3://".
run_argument = click.argument("run", metavar="RUN")
"""A run's folder, or the URL of its storage."""

trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Execute the Python code that the run names, also if you did not train it on this machine.",
)


def checkpoint_option(flag: str, default: Literal["auto", "last"] = "auto") -> Callable[[F], F]:
    """Make the option `flag`, which the command gets as `which`.

    Its values are "last", "best" and "step-N", and "auto" if that is the default. "auto" is the best
    checkpoint by validation if there is one, otherwise the last.
    """
    names = ["auto", "last", "best"] if default == "auto" else ["last", "best"]

    def checked(context: click.Context, parameter: click.Parameter, value: str) -> str:
        from ..pipeline.checkpoint.manifest import step_of

        if value not in names and step_of(value) is None:
            raise click.BadParameter(
                f"{value!r} is none of {', '.join(names)} and step-N", context, parameter
            )
        return value

    return click.option(
        flag,
        "which",
        metavar=f"[{'|'.join((*names, 'step-N'))}]",
        callback=checked,
        default=default,
        show_default=True,
        help="The last checkpoint, the best by validation, or that after N examples (run.keep_checkpoints)"
        + ('; "auto": the best, if there is one.' if default == "auto" else "."),
    )


def exit_zero_option(command: F) -> F:
    return click.option(
        "--exit-zero-on",
        metavar="CODE",
        multiple=True,
        type=int,
        help="Exit with 0 in place of this code: 5 for an engine that takes it for a failure.",
    )(command)


def engine_options(command: F) -> F:
    """Add `--on` and `--exit-zero-on`."""
    return click.option(
        "--on",
        metavar="ENGINE",
        help="Run the nodes on a cluster: ray, for that of RAY_ADDRESS or of this machine.",
    )(exit_zero_option(command))


def removed_autoscale_options(command: F) -> F:
    """Refuse `--autoscale` and `--target`, which this command had, with what to do instead."""

    def refuse(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
        del ctx
        if value is not None:
            raise click.UsageError(
                f"{parameter.opts[0]} was removed: no measurement showed that it pays; look at the speed in"
                " shadowsync top, and change the number of trainers with shadowsync scale runs/latest"
                " trainer=4"
            )

    for name in ("--target", "--autoscale"):
        option = click.option(name, hidden=True, expose_value=False, callback=refuse)
        command = option(command)
    return command


def network_options(command: F) -> F:
    """Add the options of a slow network, each a key of [network]."""
    for option in (
        click.option(
            "--delay-links",
            type=click.Choice(["sync", "all"]),
            help="Which links are slow: those of synchronization (the default), or all.",
        ),
        click.option(
            "--bandwidth",
            metavar="RATE",
            help="Emulate a slow network of this bandwidth, for example 100mbit. The limit is per listening"
            " node and direction, over all its connections.",
        ),
        click.option(
            "--delay",
            metavar="TIME",
            help="Emulate a slow network with this delay, for example 50ms. It is one way, so a request and"
            " its reply take twice as long. 0ms emulates without a delay, to compare with.",
        ),
    ):
        command = option(command)
    return command


def network_overrides(options: Mapping[str, str | None]) -> list[str]:
    """Turn the network options into quoted overrides of the job file."""
    import json

    return [f"network.{key}={json.dumps(value)}" for key, value in options.items() if value is not None]


precision_option = click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    show_default=True,
    help="Of the model's matrix products. bfloat16, as in training, takes about half the time; it needs a CPU"
    " with instructions for it.",
)
"""The command gets it as `precision`."""


class OutPath(click.Path):
    """A path on this machine that a command writes, as a Path.

    A URL is refused: it would name a folder here, such as "s3:".

    Args:
        kind: what may be there already; "any" leaves the check to the command.
    """

    def __init__(self, kind: str = "any") -> None:
        super().__init__(path_type=Path, dir_okay=kind != "file", file_okay=kind != "folder")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; fails for a URL."""
        if "://" in os.fspath(value):
            self.fail(f"{value} is a URL; give a path on this machine", param, ctx)
        return super().convert(value, param, ctx)


class NumberRange(click.FloatRange):
    """A number in a range, which NaN is not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; fails for one outside the range."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("nan is not a number", param, ctx)
        return number


class Duration(click.FloatRange):
    """A time above 0 with its unit, such as 15s, 20m or 2h, as seconds."""

    name = "time"

    def __init__(self) -> None:
        super().__init__(min=0.0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the seconds; fails for a text without a known unit, and for 0."""
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(ms|s|m|min|h)", str(value).strip())
        if match is None:
            self.fail(f"{value!r} given; write a time and its unit, such as 15s, 20m or 2h", param, ctx)
        return super().convert(float(match[1]) * _DURATION_UNITS[match[2]], param, ctx)


_DURATION_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
