"""`shadowsync scale`: the number of readers or trainers of a running job."""

from __future__ import annotations

from pathlib import Path

import click

from ..key import key_option
from ..options import removed_autoscale_options


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
    from ...nodes.clients.scale import parse_counts, scale_job
    from ...nodes.clients.watched_job import address_of
    from ...nodes.runtime.main_loop import run_interruptible

    if join is not None and run_folder is not None:
        # With --join there is no folder: the first argument is a count.
        run_folder, counts = None, (str(run_folder), *counts)
    changes = parse_counts(counts)
    address = address_of(run_folder, join)
    run_interruptible(lambda: scale_job(address, changes))
