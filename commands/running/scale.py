"""`shadowsync scale`: the number of readers or trainers of a running job."""

from __future__ import annotations

from pathlib import Path

import click

from ..key import key_option
from ..options import autoscale_options, autoscale_rules


@click.command()
@click.argument("run_folder", metavar="RUN", required=False, type=click.Path(path_type=Path))
@click.argument("counts", metavar="[ROLE=COUNT]...", nargs=-1)
@click.option("--join", metavar="tcp://HOST:PORT", help="The coordinator's address, instead of RUN.")
@autoscale_options
@key_option
def scale(
    run_folder: Path | None,
    counts: tuple[str, ...],
    join: str | None,
    autoscale: str | None,
    target: str | None,
) -> None:
    """Change the number of readers or trainers of a running job.

    For example `shadowsync scale runs/latest trainer=4`. Missing nodes are started by the job's `shadowsync
    run`; if there are too many, the last ones hand back what they have and leave. The command waits until it
    is done.

    With --autoscale 1:8 the command stays, and follows the job to its end. It measures the speed of each
    number of trainers that it tries, and goes on to more as long as each adds at least half of what the first
    ones train, or until --target is reached. `shadowsync run` takes the same options.
    """
    from ...nodes.clients.scale import parse_counts, scale_job
    from ...nodes.clients.watched_job import address_of
    from ...nodes.runtime.main_loop import run_interruptible
    from ...pipeline.errors import ClusterError, JobFileError

    if join is not None and run_folder is not None:
        # With --join there is no folder: the first argument is a count.
        run_folder, counts = None, (str(run_folder), *counts)
    rules = autoscale_rules(autoscale, target)
    if rules is None:
        changes = parse_counts(counts)
        address = address_of(run_folder, join)
        run_interruptible(lambda: scale_job(address, changes))
        return
    if counts:
        raise JobFileError("--autoscale chooses the number of trainers itself", remedy="give no ROLE=COUNT")
    from ...nodes.clients.autoscale import TrainerCounts, autoscale_job

    counts_so_far = TrainerCounts(rules)
    address = address_of(run_folder, join)

    def refuse(error: ClusterError) -> None:
        raise error

    outcome = run_interruptible(lambda: autoscale_job(address, counts_so_far, click.echo, refuse))
    click.echo(f"the job has ended: {outcome}" if outcome else "the job has ended")
