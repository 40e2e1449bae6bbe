"""`shadowsync check`: what a job makes of its data, before it runs."""

from __future__ import annotations

import click

from ..options import job_options


@click.command()
@job_options
def check(job_file: str, overrides: tuple[str, ...]) -> None:
    """Show what a job makes of its rows, and start nothing.

    It checks the schema against the files as `run` does, shows the first rows as they will be trained, how
    many examples have an id that shares its row with another, and which keys have no effect. A model or an
    algorithm of one's own is not loaded.
    """
    from ...pipeline.jobfile.check import check_job
    from ...pipeline.jobfile.check_text import check_lines
    from ...pipeline.jobfile.load import load_job

    job = load_job(job_file, overrides)
    for line in check_lines(job, check_job(job)):
        click.echo(line)
