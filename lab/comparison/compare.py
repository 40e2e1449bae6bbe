"""`shadowsync compare`: from the command line to a folder with its report."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ...nodes.runtime.process import files_of
from ...nodes.supervisor.run import JobLike, read_job
from ...pipeline.config.job import Job
from ...pipeline.errors import ExitCode, JobFileError
from ...pipeline.jobfile.extras import require_extra
from ...pipeline.jobfile.load import load_resolved
from ...pipeline.jobfile.named_code import code_of, require_trusted
from ...pipeline.open_files import require_files
from ...pipeline.report.run_folders.run_folder import create_run_folder
from ...pipeline.text.html import html_table
from .columns import all_columns
from .markdown import print_table
from .plan import JOBS, RUNS, check, make_plan
from .record import read_record, write_record
from .runner import MARKDOWN_NAME, PrintLine, run_comparison
from .summary import Row, summarize


def start_comparison(
    base: Job, algorithms: str, seeds: int, console: Console, print_line: PrintLine
) -> ExitCode:
    """Start a comparison in a new folder beside the job's runs."""
    return resume_comparison(_planned(base, algorithms, seeds), console, print_line, trust=True)


def _planned(base: Job, algorithms: str, seeds: int) -> Path:
    variants = check(base, algorithms, seeds)
    folder = create_run_folder(Path(base.run.directory), f"{base.run.name}-compare")
    write_record(folder, make_plan(base, variants, seeds, folder))
    return folder


@dataclass(frozen=True)
class Compared:
    """A comparison that was made; a notebook shows its table.

    Attributes:
        folder: has compare.md with its pictures, compare.json and every run.
        exit_code: that of `shadowsync compare`: not 0 if a run failed or a ledger does not add up.
        rows: a row for each algorithm, after that of one trainer alone.
    """

    folder: Path
    exit_code: ExitCode
    rows: list[Row]

    def _repr_html_(self) -> str:
        columns = all_columns(self.rows)
        rows = ([column.text(row) for column in columns] for row in self.rows)
        return html_table((column.title for column in columns), rows)


def compare(
    job: JobLike,
    algorithms: str | Iterable[str],
    *,
    seeds: int = 3,
    overrides: Iterable[str] = (),
    quiet: bool = False,
) -> Compared:
    """Compare algorithms on one job, as `shadowsync compare` does.

    The main thread calls: Ctrl-C ends it after writing what there is.

    Args:
        job: as `shadowsync.run` takes it, with tables in memory too.
        overrides: as `shadowsync.run` takes them.
        algorithms: "easgd,easgd@5", or a list of such: NAME in the background, NAME@K every K iterations,
            NAME:KEY=VALUE with an option.
        seeds: runs of each, on the same data, from `run.seed` on.
        quiet: prints no line for each run.

    Raises JobFileError for a job or algorithms that cannot be compared, and without the extra "lab".
    """
    require_extra("shadowsync.compare", "lab")
    listed = algorithms if isinstance(algorithms, str) else ",".join(algorithms)
    folder = _planned(read_job(job, overrides), listed, seeds)
    code = run_comparison(folder, read_record(folder), _silent if quiet else _print_line)
    return Compared(folder, code, summarize(read_record(folder)))


def _print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def _silent(_text: str) -> None:
    pass


def resume_comparison(folder: Path, console: Console, print_line: PrintLine, *, trust: bool) -> ExitCode:
    """Make a comparison's missing and failed runs; show the results.

    `trust`: they may execute code that this user has not named on this machine.
    """
    comparison = read_record(folder)
    for run in comparison.missing():
        job = load_resolved(folder / JOBS / f"{run.name}.json")
        require_trusted(code_of(job), str(folder), trust=trust)
        require_files(files_of(job))
        directory = job.run.directory
        if Path(directory) != (folder / RUNS).absolute():
            raise JobFileError(
                f"was moved: its runs would be written to {directory}",
                where=str(folder),
                remedy="move it back",
            )
    print_line(f"{len(comparison.missing())} of {len(comparison.runs)} runs to make, in {folder}")
    code = run_comparison(folder, comparison, print_line)
    print_table(comparison, summarize(comparison), console)
    print_line(f"report: {folder / MARKDOWN_NAME}")
    return code
