"""`shadowsync compare`: from the command line to a folder with the page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from ...nodes.runtime.process import files_of
from ...pipeline.config.job import Job
from ...pipeline.errors import ExitCode, JobFileError
from ...pipeline.jobfile.load import load_resolved
from ...pipeline.jobfile.named_code import code_of, require_trusted
from ...pipeline.open_files import require_files
from ...pipeline.report.run_folder import create_run_folder
from .markdown import print_table
from .plan import JOBS, RUNS, check, make_plan
from .record import read_record, write_record
from .runner import PAGE_NAME, PrintLine, run_comparison
from .summary import summarize


def start_comparison(
    base: Job, algorithms: str, seeds: int, console: Console, print_line: PrintLine
) -> ExitCode:
    """Start a comparison in a new folder beside the job's runs."""
    variants = check(base, algorithms, seeds)
    folder = create_run_folder(Path(base.run.directory), f"{base.run.name}-compare")
    write_record(folder, make_plan(base, variants, seeds, folder))
    return resume_comparison(folder, console, print_line, trust=True)


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
    print_line(f"page: {folder / PAGE_NAME}")
    return code
