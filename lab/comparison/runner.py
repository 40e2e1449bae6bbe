"""Running a comparison; its results are written even after an interrupt."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ...pipeline.atomic_file import write_text
from ...pipeline.errors import ExitCode
from ...pipeline.report.document import Report
from ...pipeline.report.run_folders.write import JSON_NAME as REPORT_NAME
from ...pipeline.report.run_folders.write import read_report
from ...pipeline.text.format import count, duration, number
from ..job_process import JobProcess
from .markdown import render_markdown
from .plan import JOBS, RUNS
from .plots import draw, write_pictures
from .record import Comparison, Figures, Run, write_record
from .summary import Row, summarize

MARKDOWN_NAME = "compare.md"
LOGS = "logs"
# A run with one of these exit codes trained to its end, so that its figures are complete.
WITH_FIGURES = (ExitCode.OK, ExitCode.FINISHED_WITH_DEATHS, ExitCode.LEDGER)

PrintLine = Callable[[str], None]


def run_comparison(folder: Path, comparison: Comparison, print_line: PrintLine) -> ExitCode:
    """Make the missing runs, one by one; return the exit code.

    compare.json is written after each run; compare.md and its pictures at the end, also after an interrupt.
    """
    jobs = JobProcess()
    missing = comparison.missing()
    with jobs.heeding_signals():
        for number, run in enumerate(missing, start=1):
            begun = time.monotonic()
            _make(folder, comparison, run, jobs)
            if jobs.interrupts:
                print_line(f"interrupted in {run.label}, seed {run.seed}")
                break
            write_record(folder, comparison)
            print_line(_line(run, f"{number}/{len(missing)}", time.monotonic() - begun))
        comparison.complete = not jobs.interrupts
        write_all(folder, comparison)
    if jobs.interrupts:
        return ExitCode.INTERRUPTED
    if any(run.figures is not None and not run.figures.ledger_adds_up for run in comparison.runs):
        return ExitCode.LEDGER
    unwell = any(run.exit_code != 0 for run in comparison.runs)
    return ExitCode.FINISHED_WITH_DEATHS if unwell else ExitCode.OK


def write_all(folder: Path, comparison: Comparison) -> list[Row]:
    """Write compare.json, compare.md and its pictures; return their rows."""
    rows = summarize(comparison)
    comparison.summary = [row.model_dump(mode="json", by_alias=True) for row in rows]
    write_record(folder, comparison)
    write_text(folder / MARKDOWN_NAME, render_markdown(comparison, rows))
    write_pictures(folder, draw(comparison, rows, reports_of(folder, comparison)))
    return rows


def reports_of(folder: Path, comparison: Comparison) -> dict[str, list[Report]]:
    """Read the reports of the runs that have figures, by label."""
    reports: dict[str, list[Report]] = {}
    for run in comparison.runs:
        path = folder / (run.folder or "") / REPORT_NAME
        # A run's folder may have been deleted to free the disk; its figures are in compare.json.
        if run.figures is not None and path.exists():
            reports.setdefault(run.label, []).append(read_report(path))
    return reports


def _make(folder: Path, comparison: Comparison, run: Run, jobs: JobProcess) -> None:
    runs = folder / RUNS
    before = _names(runs, run)
    code, message = jobs.run(folder / JOBS / f"{run.name}.json", folder / LOGS / f"{run.name}.txt")
    if jobs.interrupts:
        return
    run.exit_code = code if code >= 0 else 128 - code
    run.message = message or ("killed" if code < 0 else "")
    made = sorted(_names(runs, run) - before)
    run.folder = f"{RUNS}/{made[0]}" if made else None
    run.figures = None
    if made and code in WITH_FIGURES and (runs / made[0] / REPORT_NAME).exists():
        report = read_report(runs / made[0] / REPORT_NAME)
        run.figures = Figures.of(report, comparison.batch)
        comparison.means = report.network.means if report.network else None
    run.status = "finished" if run.figures is not None else "failed"


def _names(runs: Path, run: Run) -> set[str]:
    """Return the folders of a run, also of interrupted attempts."""
    return {path.name for path in runs.glob(f"{run.name}*")}


def _line(run: Run, place: str, seconds: float) -> str:
    start = f"{place:>7}  {run.label}, seed {run.seed}"
    if run.figures is None:
        return f"{start}: FAILED with exit code {run.exit_code}: {run.message or 'it printed nothing'}"
    figures = run.figures
    parts = [] if figures.ne is None else [f"NE {number(figures.ne)}"]
    if figures.examples_per_second is not None:
        parts.append(f"{count(figures.examples_per_second)} examples/s")
    if figures.rounds:
        parts.append(f"{count(figures.rounds)} rounds")
    if not figures.ledger_adds_up:
        parts.append("THE LEDGER DOES NOT ADD UP")
    if run.exit_code == ExitCode.FINISHED_WITH_DEATHS:
        parts.append("a node died")
    return f"{start}: {', '.join(parts)} ({duration(round(seconds))})"
