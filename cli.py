"""The command line: options to configuration to nodes. Imports lazily, so that --help needs no torch."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from . import __version__

if TYPE_CHECKING:
    from .nodes.settings import NodeSettings
    from .pipeline.config.job import Job

F = TypeVar("F", bound=Callable[..., Any])

EXIT_CODES = """\b
Exit codes:
  0    finished
  1    an error of shadowsync itself; the node's log has the traceback
  2    the job file or the command line cannot be used
  3    the input, or a checkpoint, cannot be used
  4    the nodes could not form the job
  5    finished although a node died
  6    stopped because a node died
  7    the ledger does not add up
  8    something did not fit: memory or disk
  130  interrupted; a checkpoint was written if training had begun
"""


class Commands(click.Group):
    """Turns our errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        from .pipeline.errors import ExitCode, ShadowSyncError

        try:
            return super().invoke(ctx)
        except ShadowSyncError as error:
            click.echo(f"shadowsync {ctx.invoked_subcommand or ''}: {error}", err=True)
            sys.exit(int(error.exit_code))
        except KeyboardInterrupt:
            # Nodes heed the signal themselves; this is about the commands that are no nodes.
            click.echo(f"shadowsync {ctx.invoked_subcommand or ''}: interrupted", err=True)
            sys.exit(int(ExitCode.INTERRUPTED))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.version_option(__version__, prog_name="shadowsync")
def main() -> None:
    """Train recommendation models on many machines while they synchronize in the background."""


def job_options(command: F) -> F:
    """JOB.toml and --set."""
    command = click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Override a setting of the job file.",
    )(command)
    return click.argument("job_file", metavar="JOB.toml", type=click.Path())(command)


def network_options(command: F) -> F:
    """The slow network of `run` and `compare`; each is a key of the job file's [network]."""
    for option in (
        click.option(
            "--emulation",
            type=click.Choice(["auto", "relay", "tc"]),
            help="By which means. auto takes the kernel's traffic control where there is root and what it"
            " needs, and a relay process otherwise.",
        ),
        click.option(
            "--delay-links",
            type=click.Choice(["sync", "all"]),
            help="Which links are slow: those of synchronization (the default), or all.",
        ),
        click.option(
            "--bandwidth",
            metavar="RATE",
            help="Emulate a slow network, for example 100mbit: of each node that listens on such a link, in"
            " each direction, all its connections together.",
        ),
        click.option(
            "--delay",
            metavar="TIME",
            help="Emulate a slow network, for example 50ms: one way, so a question and its answer take twice"
            " as long. 0ms puts the emulation in place without a delay, to compare with.",
        ),
    ):
        command = option(command)
    return command


def node_options(command: F) -> F:
    """What differs from process to process."""
    for option in (
        click.option("--bind", help="Host, or host:port, to listen on. [default: network.bind]"),
        click.option("--advertise", help="The host that others are told. [default: network.advertise]"),
        click.option("--token", hidden=True),
        click.option("--supervised", is_flag=True, hidden=True),
    ):
        command = option(command)
    return command


@main.command()
@job_options
@network_options
@click.option("--quiet", is_flag=True, help="No progress and no report on the terminal, only errors.")
@click.option("--supervised", is_flag=True, hidden=True)
def run(
    job_file: str, overrides: tuple[str, ...], quiet: bool, supervised: bool, **network: str | None
) -> None:
    """Start all roles of a job on this machine and watch them to the end."""
    from rich.console import Console

    from .nodes.launch import check_sync
    from .nodes.supervisor import Supervisor
    from .pipeline.models.registry import build_model
    from .pipeline.report.terminal import print_report

    job = _load(job_file, (*overrides, *_network_overrides(network)), torch=True)
    check_sync(job)
    build_model(job)

    async def supervise() -> Any:
        progress = _print_nothing if quiet else _print_progress
        supervisor = Supervisor(job, progress, supervised=supervised)
        return *(await supervisor.run()), supervisor.folder

    code, text, report, folder = asyncio.run(supervise())
    if report is not None and not quiet:
        print_report(report, Console())
        click.echo(f"report: {_short(folder / 'report.md')}")
    if text:
        click.echo(f"shadowsync run: {text}", err=True)
    sys.exit(int(code))


@main.command()
@click.argument("job_file", metavar="[JOB.toml]", required=False, type=click.Path())
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="For every run.")
@click.option(
    "--algorithms",
    metavar="LIST",
    help="For example none,easgd,easgd@5,easgd:elastic_rate=0.3@30: NAME is the shadow mode, NAME@K a fixed"
    " rate of every K iterations, :KEY=VALUE an option of the algorithm.",
)
@click.option("--seeds", type=click.IntRange(1, 1000), help="How many, from run.seed on. [default: 3]")
@network_options
@click.option(
    "--resume",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Go on with the comparison in DIR, and try again what failed; takes no other option.",
)
def compare(
    job_file: str | None,
    overrides: tuple[str, ...],
    algorithms: str | None,
    seeds: int | None,
    resume: Path | None,
    **network: str | None,
) -> None:
    """Run a job under several algorithms and one trainer alone, side by side, and write one page about it.

    Each is run with every seed on the same data, in alternation. The folder RUN-compare beside the job's
    runs holds compare.html, compare.json, compare.md and every run. A run that fails is shown as failed and
    the others go on; the exit code is then 5, or 7 if a ledger does not add up.
    """
    from rich.console import Console

    from .pipeline.errors import JobFileError

    others = [job_file, algorithms, seeds, *overrides, *network.values()]
    if resume is not None and any(value is not None for value in others):
        raise JobFileError("--resume: the comparison has its own job and options", remedy="give DIR alone")
    if resume is None and (job_file is None or algorithms is None):
        raise JobFileError("a job file and --algorithms are needed", remedy="see shadowsync compare --help")
    from .lab.compare import go_on, start
    from .pipeline.config.load import load_job

    console = Console()
    if resume is not None:
        sys.exit(int(go_on(resume, console, _say)))
    assert job_file is not None
    assert algorithms is not None
    job = load_job(job_file, (*overrides, *_network_overrides(network)))
    sys.exit(int(start(job, algorithms, seeds or 3, console, _say)))


@main.command()
@job_options
@node_options
@click.option("--announce", type=click.Path(path_type=Path), hidden=True)
def coordinator(
    job_file: str,
    overrides: tuple[str, ...],
    bind: str | None,
    advertise: str | None,
    token: str | None,
    supervised: bool,
    announce: Path | None,
) -> None:
    """Start the coordinator of a job; it prints the address that the others join."""
    from .nodes.coordinator_main import run_coordinator
    from .nodes.logs import log_to_stderr

    settings = _settings(
        job_file, overrides, bind, advertise, token, supervised, torch=False, announce=announce
    )
    log_to_stderr()
    code, text, report = asyncio.run(run_coordinator(settings))
    if report is not None and not supervised:
        from rich.console import Console

        from .pipeline.report.terminal import print_report

        print_report(report, Console())
    if text:
        click.echo(f"shadowsync coordinator: {text}", err=True)
    sys.exit(int(code))


def _role_command(name: str, text: str) -> None:
    @main.command(name=name, help=text)
    @job_options
    @node_options
    @click.option("--join", required=True, metavar="tcp://HOST:PORT", help="The coordinator's address.")
    def start(
        job_file: str,
        overrides: tuple[str, ...],
        bind: str | None,
        advertise: str | None,
        token: str | None,
        supervised: bool,
        join: str,
    ) -> None:
        from .nodes.launch import run_node, say

        torch = name in ("trainer", "sync")
        settings = _settings(job_file, overrides, bind, advertise, token, supervised, torch=torch, join=join)
        code, why = run_node(name, settings)
        say(code, why, name)
        sys.exit(int(code))


_role_command("reader", "Start a reader: it takes spans of the input and delivers batches.")
_role_command("trainer", "Start a trainer: a replica, its workers and its shadow thread.")
_role_command("embedding", "Start an embedding node: a shard of all the tables.")
_role_command("sync", "Start a sync node: a slice of the parameter center.")


@main.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--examples", default=1_000_000, show_default=True, type=click.IntRange(1))
@click.option("--eval-examples", default=100_000, show_default=True, type=click.IntRange(0))
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0))
@click.option("--format", "data_format", default="parquet", type=click.Choice(["parquet", "criteo_tsv"]))
@click.option("--files", default=1, show_default=True, type=click.IntRange(1), help="Training files.")
@click.option("--compression", default="none", type=click.Choice(["none", "gz", "zst"]))
@click.option("--reuse", is_flag=True, help="Do nothing if the same log is there already.")
def generate(directory: Path, reuse: bool, **options: Any) -> None:
    """Generate a Criteo-shaped click log with a planted teacher into DIRECTORY."""
    from .pipeline.data.generator import generate_log

    manifest = generate_log(directory, reuse=reuse, **options)
    done = "is there already" if manifest.reused else "written"
    for name, part in (("train", manifest.train), ("eval", manifest.eval)):
        if part.examples:
            teacher = "" if part.teacher_ne is None else f", teacher's NE {part.teacher_ne:.4f}"
            size = f"{part.bytes / 1e6:,.0f} MB"
            ids = f"{part.distinct_ids:,} distinct ids"
            click.echo(f"{name}: {part.examples:,} examples, {ids}, {size}{teacher}")
    click.echo(f"{done}: {directory}")


@main.command(name="eval")
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--data", "data", required=True, multiple=True, help="File or glob to score, of the job's format."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(run_folder: Path, data: tuple[str, ...], as_json: bool) -> None:
    """Score the model that RUN saved on data files, without a cluster."""
    import json

    from .nodes.offline_eval import evaluate_run

    scores = evaluate_run(run_folder, [str(Path(pattern).absolute()) for pattern in data])
    if as_json:
        click.echo(json.dumps(scores))
        return
    for key, value in scores.items():
        click.echo(f"{key:>12}  {value:.6f}" if isinstance(value, float) else f"{key:>12}  {value}")


@main.command()
def algos() -> None:
    """List the synchronization algorithms, also those of installed packages, and their options."""
    from .sync_algos.listing import list_algorithms

    for line in list_algorithms():
        click.echo(line)


def _settings(
    job_file: str,
    overrides: tuple[str, ...],
    bind: str | None,
    advertise: str | None,
    token: str | None,
    supervised: bool,
    *,
    torch: bool,
    **more: Any,
) -> NodeSettings:
    from .nodes.settings import NodeSettings
    from .pipeline.errors import JobFileError

    job = _load(job_file, overrides, torch=torch)
    if job.network.slow is not None and not supervised:
        raise JobFileError(
            "network.delay and network.bandwidth are emulated by `shadowsync run` only",
            where=job_file,
            remedy="leave them out for a node that is started by itself",
        )
    given: dict[str, Any] = {"token": token} if token else {}
    return NodeSettings(
        job=job,
        bind=bind if bind is not None else job.network.bind,
        advertise=advertise if advertise is not None else job.network.advertise,
        supervised=supervised,
        **given,
        **more,
    )


def _network_overrides(given: Mapping[str, str | None]) -> list[str]:
    """The network options as overrides of the job file, quoted: text whatever is in them."""
    import json

    return [f"network.{key}={json.dumps(value)}" for key, value in given.items() if value is not None]


def _load(job_file: str, overrides: tuple[str, ...], *, torch: bool) -> Job:
    """The job of a TOML file, or of the resolved JSON that a supervisor or a run folder has.

    `torch`: whether this process will have torch anyway, and so may import an algorithm.
    """
    from .nodes.sync_count import with_sync_nodes
    from .pipeline.config.load import load_job, load_resolved
    from .pipeline.errors import JobFileError

    if not job_file.endswith(".json"):
        return with_sync_nodes(load_job(job_file, overrides), may_import=torch)
    if overrides:
        raise JobFileError("--set cannot change a resolved job", where=job_file, remedy="give the TOML file")
    return load_resolved(job_file)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _print_nothing(status: dict[str, Any]) -> None:
    del status


def _print_progress(status: dict[str, Any]) -> None:
    speed, ne = status.get("examples_per_second"), status.get("ne")
    parts = [f"{status['seconds']:6.0f} s  {status['phase']}", f"{status['trained']:>11,} trained"]
    if speed:
        parts.append(f"{speed:>9,.0f} examples/s")
    if ne:
        parts.append(f"NE {ne:.4f}")
    if status.get("rounds"):
        parts.append(f"{status['rounds']:,} rounds, open gap {status['gap_open']}")
    click.echo("  ".join(parts), err=True)


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


if __name__ == "__main__":
    main()
