"""Runner of a virtual comparison, with one run per core at once."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from rich.console import Console

from ...nodes.runtime.process import VIRTUAL_RUN, python
from ...pipeline.atomic_file import write_text
from ...pipeline.config.job import Job
from ...pipeline.errors import ExitCode
from ...pipeline.input.plan import plan_input, require_fixed_input, require_ne
from ...pipeline.jobfile.load import load_resolved
from ...pipeline.jobfile.named_code import code_of, note_named_code, require_trusted
from ...pipeline.report.run_folders.run_folder import create_run_folder
from ...pipeline.text.format import duration, number
from ..comparison.plots import write_pictures
from ..comparison.record import read_json
from ..comparison.runner import PrintLine
from ..comparison.variants import require_several_trainers
from .markdown import draw_virtual, print_virtual_table, render_virtual_markdown
from .plan import (
    VirtualRun,
    job_path,
    make_virtual_plan,
    read_virtual_plan,
    result_path,
    results_of,
    write_plan,
)
from .result import VirtualResult
from .summary import summarize_virtual
from .timing import Timing

MARKDOWN_NAME: Final = "virtual.md"
LOOK_SECONDS: Final = 0.1


def start_virtual_comparison(
    base: Job,
    algorithms: str,
    trainers: list[int],
    seeds: int,
    timing: Timing,
    console: Console,
    print_line: PrintLine,
) -> ExitCode:
    """Start a virtual comparison in a new folder beside the job's runs."""
    plan, jobs = make_virtual_plan(base, algorithms, trainers, seeds, timing)
    require_fixed_input(base)
    require_ne(base)
    require_several_trainers(trainers, "--trainers 1,2,4")
    if plan_input(base).validation:
        print_line(
            "validation is not emulated: its rows are neither trained on nor scored, no run ends early"
        )
    folder = create_run_folder(Path(base.run.directory), f"{base.run.name}-virtual")
    write_plan(folder, plan, jobs)
    note_named_code(name for job in jobs.values() for name in code_of(job).values())
    return resume_virtual_comparison(folder, console, print_line, trust=True)


def resume_virtual_comparison(
    folder: Path, console: Console, print_line: PrintLine, *, trust: bool
) -> ExitCode:
    """Make the missing runs and write virtual.md, also after an interrupt.

    `trust`: they may execute code that this user has not named on this machine.
    """
    plan = read_virtual_plan(folder)
    missing = [run for run in plan.runs if not result_path(folder, run.name).exists()]
    for run in missing:
        require_trusted(code_of(load_resolved(job_path(folder, run.name))), str(folder), trust=trust)
    print_line(f"{len(missing)} of {len(plan.runs)} runs to make, in {folder}")
    processes = _Processes(folder, print_line)
    interrupted = False
    try:
        processes.make(missing)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        processes.end()
    rows = summarize_virtual(plan, results_of(folder, plan))
    write_text(folder / MARKDOWN_NAME, render_virtual_markdown(plan, rows))
    write_pictures(folder, draw_virtual(rows))
    print_virtual_table(rows, console)
    print_line(f"report: {folder / MARKDOWN_NAME}")
    if interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.FINISHED_WITH_DEATHS if processes.failed else ExitCode.OK


@dataclass(frozen=True)
class _Process:
    """A process that makes a run.

    Attributes:
        errors: a file of what it prints to standard error; a pipe that nobody reads would stop it.
        begun: time by the monotonic clock.
    """

    run: VirtualRun
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    begun: float

    def last_line(self) -> str:
        """Return the last line that it printed; "" if there is none."""
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


class _Processes:
    """Parallel runner: one process per run, one per core.

    Attributes:
        failed: number of runs that ended without a result.
    """

    def __init__(self, folder: Path, print_line: PrintLine) -> None:
        self.failed = 0
        self._folder = folder
        self._print_line = print_line
        self._running: dict[str, _Process] = {}

    def make(self, runs: list[VirtualRun]) -> None:
        """Make these runs, in this order."""
        waiting = list(reversed(runs))
        done = 0
        while waiting or self._running:
            while waiting and len(self._running) < (os.cpu_count() or 1):
                self._begin(waiting.pop())
            time.sleep(LOOK_SECONDS)
            for name, running in tuple(self._running.items()):
                if running.process.poll() is None:
                    continue
                done += 1
                self._ended(name, f"{done}/{len(runs)}")

    def end(self) -> None:
        for running in self._running.values():
            running.process.terminate()
        for running in self._running.values():
            running.process.wait()
            running.errors.close()

    def _begin(self, run: VirtualRun) -> None:
        command = python(VIRTUAL_RUN, str(self._folder), run.name)
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the run
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors)
        self._running[run.name] = _Process(run, process, errors, time.monotonic())

    def _ended(self, name: str, place: str) -> None:
        ended = self._running.pop(name)
        run, code, last = ended.run, ended.process.returncode, ended.last_line()
        ended.errors.close()
        what = f"{place:>7}  {run.label}, {run.trainers} trainers, seed {run.seed}"
        path = result_path(self._folder, name)
        if code or not path.exists():
            self.failed += 1
            self._print_line(f"{what}: FAILED with exit code {code}: {last or 'it printed nothing'}")
            return
        result = read_json(path, VirtualResult)
        seconds = round(time.monotonic() - ended.begun)
        self._print_line(f"{what}: NE {number(result.ne)} ({duration(seconds)})")
