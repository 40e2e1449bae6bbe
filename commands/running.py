"""Commands about a job that runs: `shadowsync scale`, `stop`, `top` and `health`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .key import key_option
from .options import NumberRange, removed_autoscale_options


@click.command()
@click.argument("run_folder", metavar="[RUN]", required=False, type=click.Path(path_type=Path))
@click.option("--join", metavar="tcp://HOST:PORT", help="The coordinator's address.")
@key_option
@click.option("--once", is_flag=True, help="Show the job once and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a second, with all curves.")
def top(run_folder: Path | None, join: str | None, once: bool, as_json: bool) -> None:
    """Watch a running job.

    Give its run folder, for example runs/latest, or the coordinator's address with --join. The command only
    reads, and does not disturb the job. It ends with the job, or on Ctrl-C.
    """
    from ..nodes.clients.watched_job import address_of, show_job
    from ..nodes.runtime.main_loop import run_interruptible

    address = address_of(run_folder, join)
    run_interruptible(lambda: show_job(address, once=once, as_json=as_json))


@click.command()
@click.argument("run_folder", metavar="RUN", required=False, type=click.Path(path_type=Path))
@click.option("--join", metavar="tcp://HOST:PORT", help="The coordinator's address, instead of RUN.")
@key_option
def stop(run_folder: Path | None, join: str | None) -> None:
    """End the input of a job that follows it (data.follow).

    The job looks for no more input, trains what it has, and ends as any other job: with a last round, a
    checkpoint, an evaluation and a report. The command does not wait for that. Ctrl-C in the job's terminal
    ends it at once instead, and `shadowsync resume` continues it.
    """
    from ..nodes.clients.requests import end_input
    from ..nodes.clients.watched_job import address_of
    from ..nodes.runtime.main_loop import run_interruptible

    address = address_of(run_folder, join)
    run_interruptible(lambda: end_input(address))
    click.echo("the job looks for no more input; it ends when it has trained what it has")


@click.command()
@click.argument("run_folder", metavar="RUN", required=False, type=click.Path(path_type=Path))
@click.argument("counts", metavar="[ROLE=COUNT]...", nargs=-1)
@click.option("--join", metavar="tcp://HOST:PORT", help="The coordinator's address, instead of RUN.")
@removed_autoscale_options
@key_option
def scale(run_folder: Path | None, counts: tuple[str, ...], join: str | None) -> None:
    """Change the number of readers or trainers of a running job.

    For example `shadowsync scale runs/latest trainer=4`. Missing nodes are started by the job's `shadowsync
    run`; if there are too many, the last ones hand back what they have and leave. The command waits until it
    is done.
    """
    from ..nodes.clients.requests import parse_counts, scale_job
    from ..nodes.clients.watched_job import address_of
    from ..nodes.runtime.main_loop import run_interruptible

    if join is not None and run_folder is not None:
        # With --join there is no folder: the first argument is a count.
        run_folder, counts = None, (str(run_folder), *counts)
    changes = parse_counts(counts)
    address = address_of(run_folder, join)
    run_interruptible(lambda: scale_job(address, changes))


@click.command()
@click.argument("path", metavar="[PATH]", envvar="SHADOWSYNC_HEALTH", type=click.Path(path_type=Path))
@click.option("--timeout", default=5.0, show_default=True, type=NumberRange(min=0, min_open=True))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with the node's figures.")
def health(path: Path, timeout: float, as_json: bool) -> None:
    """Ask the node at the Unix socket PATH whether it is healthy.

    PATH defaults to SHADOWSYNC_HEALTH, which also tells a node where to answer. The exit code is 0 for a
    coordinator that answers, and for a node that is in its job and received something from the coordinator
    recently. Otherwise it is 1, also if nothing answers for --timeout seconds.
    """
    import json
    from dataclasses import asdict

    from ..nodes.runtime.health import request_health

    reply = request_health(path, timeout)
    click.echo(json.dumps(asdict(reply)) if as_json else reply.text, err=not reply.healthy)
    sys.exit(0 if reply.healthy else 1)
