"""`shadowsync init`: a first job file for one's own data."""

from __future__ import annotations

import re
from pathlib import Path

import click


@click.command()
@click.argument("source", metavar="DATA")
@click.option("--label", default="", metavar="COLUMN", help="The label's column, where it is not clear.")
@click.option(
    "--positive",
    multiple=True,
    metavar="TEXT",
    help="A text of the label that counts as 1, where it has more than two. May be repeated.",
)
@click.option("--eval", "eval_source", default="", metavar="DATA", help="Files for the test at the end.")
@click.option("--out", default="job.toml", show_default=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def init(
    source: str, label: str, positive: tuple[str, ...], eval_source: str, out: Path, force: bool
) -> None:
    """Draft a job file for DATA.

    DATA is a file, a quoted glob, a folder, or a URL of one. It looks at rows from all over the files,
    guesses what the columns are, and writes a comment beside each guess, and a QUESTION with the other answer
    where it is not sure. The draft runs as it is; read it first, and see what it makes of the rows with
    `shadowsync check`.
    """
    from ...pipeline.atomic_file import write_text
    from ...pipeline.errors import JobFileError
    from ...pipeline.jobfile.draft.draft import draft_job
    from ...pipeline.jobfile.load import load_job

    if out.exists() and not force:
        raise JobFileError("exists already", where=str(out), remedy="give another --out, or --force")
    # A run's name has no blanks, and a file's may.
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", out.stem).lstrip("-._")[:100] or "job"
    text = draft_job(source, out.parent, name=name, label=label, positive=positive, eval_source=eval_source)
    write_text(out, text)
    job = load_job(out)
    kinds = [column.kind for column in job.data.columns.values()]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    click.echo(f"label: {', '.join(job.data.label_names)}")
    click.echo(f"columns: {counts}; read the comments beside them")
    if asked := text.count("\n# QUESTION: "):
        click.echo(f"questions: {asked}; see the lines with QUESTION, and answer them")
    click.echo(f"written: {out}; next: shadowsync check {out}, then shadowsync run {out}")
