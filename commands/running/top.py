"""`shadowsync top`: a look at a running job."""

from __future__ import annotations

from pathlib import Path

import click

from ..key import key_option


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
    from ...nodes.clients.watched_job import address_of, show_job
    from ...nodes.runtime.main_loop import run_interruptible

    address = address_of(run_folder, join)
    run_interruptible(lambda: show_job(address, once=once, as_json=as_json))
