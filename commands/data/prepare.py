"""`shadowsync prepare`: a job's input as pre-hashed Parquet."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ...pipeline.prepare.preparation import PreparationStatus, Prepared

_PERIOD_SECONDS = 0.2


@contextmanager
def progress_shown(*, quiet: bool) -> Iterator[Callable[[PreparationStatus], None]]:
    """Yield a callback that shows progress if standard error is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    columns = (
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[rows]:,} rows, {task.fields[rate]:,.0f} rows/s"),
        TimeElapsedColumn(),
    )
    begun, shown, rows_before = time.monotonic(), 0.0, -1
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("prepare", total=None, rows=0, rate=0.0)

        def on_progress(state: PreparationStatus) -> None:
            nonlocal shown, rows_before
            now = time.monotonic()
            if now - shown < _PERIOD_SECONDS:
                return
            rows_before = state.rows if rows_before < 0 else rows_before
            rate = (state.rows - rows_before) / max(now - begun, 1e-9)
            progress.update(
                task, completed=state.bytes_done, total=state.bytes_all, rows=state.rows, rate=rate
            )
            shown = now

        yield on_progress


@click.command()
@click.argument("job_file", metavar="JOB.toml", type=click.Path())
@click.option(
    "--out",
    required=True,
    help="The folder to write, on this machine; created if absent. With --verify it may be a URL.",
)
@click.option("--force", is_flag=True, help="Remove what an earlier call wrote there, and start over.")
@click.option(
    "--verify",
    is_flag=True,
    help="Write nothing; check the folder against the job's settings and every part against its checksum.",
)
@click.option("--quiet", is_flag=True, help="Show no progress, only the result.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override a setting of the job file.",
)
def prepare(
    job_file: str, out: str, force: bool, verify: bool, quiet: bool, overrides: tuple[str, ...]
) -> None:
    """Parse and hash a job's input into Parquet, for all runs.

    The command reads all files that [data] names, as a run would, and writes numbered parts, statistics of
    the data (statistics.md) and, last, manifest.json to --out. An interrupted call resumes where it stopped.
    Then `shadowsync run JOB.toml --set data.prepared=FOLDER` trains on the same rows.
    """
    from ...pipeline.errors import JobFileError
    from ...pipeline.jobfile.load import load_job
    from ...pipeline.prepare.preparation import prepare_folder
    from ...pipeline.prepare.statistics_page import sharing_line
    from ...pipeline.report.run_folders.run_folder import shown

    if verify and force:
        raise click.UsageError("--verify and --force exclude each other; give one of them")
    if verify:
        _verify(job_file, out, overrides)
        return
    if "://" in out:
        raise JobFileError(
            "a prepared folder cannot be written to a URL",
            where=f"--out {out}",
            remedy="give a folder on this machine, copy it there, and set data.prepared to the URL",
        )
    folder = Path(out)
    # The job file may already name a prepared folder.
    job = load_job(job_file, (*overrides, 'data.prepared=""'))
    try:
        with progress_shown(quiet=quiet) as on_progress:
            done = prepare_folder(job, folder, force=force, on_progress=on_progress)
    except KeyboardInterrupt:
        click.echo(f"{shown(folder)} is not complete; the same command resumes where it stopped", err=True)
        raise
    _say(done, shown(folder))
    if line := sharing_line(folder):
        click.echo(line)
    click.echo(f"statistics: {shown(folder / 'statistics.md')}")


def _verify(job_file: str, out: str, overrides: tuple[str, ...]) -> None:
    """Compare the folder with the job and with its checksums."""
    from ...pipeline.data.prepared.part_reader import verify_folder
    from ...pipeline.jobfile.load import load_job
    from ...pipeline.text.format import counted

    # Loading the job with this folder fails if the folder was prepared for other settings.
    prepared = json.dumps(out, ensure_ascii=False)
    job = load_job(job_file, (*overrides, f"data.prepared={prepared}"))
    manifest = verify_folder(job.data.prepared)
    click.echo(
        f"{counted(len(manifest.parts), 'part')}, {counted(manifest.rows, 'row')}, all checksums match: {out}"
    )


def _say(done: Prepared, where: str) -> None:
    """Print what a preparation wrote."""
    from ...pipeline.text.format import data_size, percent

    for role in done.manifest.roles:
        if role.rows:
            bad = f", {role.bad_rows:,} malformed rows left out" if role.bad_rows else ""
            rate = role.positives / role.rows
            click.echo(f"{role.role}: {role.rows:,} rows, label rate {percent(rate, 2)}{bad}")
            for sample in role.bad_samples:
                click.echo(f"  {sample}", err=True)
    size = sum(part.bytes for part in done.manifest.parts)
    before = f", {done.parts_before} of them by an earlier call" if done.parts_before else ""
    what = "exists already" if done.reused else f"{len(done.manifest.parts)} parts{before}, {data_size(size)}"
    click.echo(f"{what}: {where}")
