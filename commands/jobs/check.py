"""`shadowsync check`: what a job makes of its data, before it runs."""

from __future__ import annotations

import click

from ..options import job_options


@click.command()
@job_options
def check(job_file: str, overrides: tuple[str, ...]) -> None:
    """Show what a job makes of its rows, and start nothing.

    It checks the schema against the files as `run` does, shows the first rows as they will be trained, how
    many examples have an id that shares its row with another, and which keys have no effect. The options of
    an algorithm are not checked, and a model or an algorithm of one's own is not loaded.
    """
    from ...pipeline.errors import JobFileError
    from ...pipeline.jobfile.check import check_job
    from ...pipeline.jobfile.check_text import check_lines
    from ...pipeline.jobfile.load import load_job
    from ...sync_algos.catalog.names import require_known
    from ...sync_algos.contract.options import AlgorithmError

    job = load_job(job_file, overrides)
    try:
        require_known(job.sync.algorithm)
    except AlgorithmError as error:
        raise JobFileError(str(error)) from error
    for line in check_lines(job, check_job(job)):
        click.echo(line)
