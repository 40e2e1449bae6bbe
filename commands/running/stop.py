"""`shadowsync stop`: the end of an input that a job follows."""

from __future__ import annotations

from pathlib import Path

import click

from ..key import key_option


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
    from ...nodes.clients.stop import end_input
    from ...nodes.clients.watched_job import address_of
    from ...nodes.runtime.main_loop import run_interruptible

    address = address_of(run_folder, join)
    run_interruptible(lambda: end_input(address))
    click.echo("the job looks for no more input; it ends when it has trained what it has")
