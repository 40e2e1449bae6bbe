"""`shadowsync tune`: from the command line to a folder with the best job file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...nodes.runtime.process import files_of
from ...pipeline.atomic_file import atomic_file
from ...pipeline.checkpoint.manifest import remove_all
from ...pipeline.config.job import Job
from ...pipeline.errors import ExitCode
from ...pipeline.input.plan import plan_input
from ...pipeline.jobfile.load import load_resolved
from ...pipeline.jobfile.named_code import code_in, code_of, require_trusted
from ...pipeline.open_files import require_files
from ...pipeline.report.run_folder import create_run_folder
from ...pipeline.text.format import count, number
from ...pipeline.text.markdown import markdown_table, plain
from ..comparison.record import ComparisonPart, read_json, write_json
from ..comparison.runner import PrintLine
from .space import as_options, check_space, parse_space, trial_job
from .study import Study, StudyRules, Trial
from .trial_run import JobTrials, require_tunable

JSON_NAME: Final = "tune.json"
MARKDOWN_NAME: Final = "tune.md"
BASE_NAME: Final = "job.json"
BEST_NAME: Final = "best.json"
JOURNAL: Final = "trials.log"
# A study whose trials all fail is wrong, not unlucky.
MOST_FAILURES: Final = 3
_SHOWN: Final = 10


class TuneRecord(ComparisonPart):
    """What a study was asked for; the journal beside it has its trials."""

    search: list[str]
    trials: int
    rules: StudyRules


def start_study(
    base: Job, search: list[str], trials: int, rules: StudyRules, console: Console, print_line: PrintLine
) -> ExitCode:
    """Start a study in a new folder beside the job's runs.

    Raises JobFileError, before anything is written, for settings that cannot be searched.
    """
    check_space(parse_space(search), base)
    require_tunable(base)
    plan_input(base)
    folder = create_run_folder(Path(base.run.directory), f"{base.run.name}-tune")
    (folder / BASE_NAME).write_text(base.model_dump_json(indent=1) + "\n", encoding="utf-8")
    write_json(folder / JSON_NAME, TuneRecord(search=search, trials=trials, rules=rules))
    return resume_study(folder, None, console, print_line, trust=True)


def resume_study(
    folder: Path, trials: int | None, console: Console, print_line: PrintLine, *, trust: bool
) -> ExitCode:
    """Make a study's missing trials; with `trials`, so many in all.

    `trust`: they may execute code that this user has not named on this machine.

    Returns 0, 5 if trials failed, or 130 at an interrupt, after which the study can be resumed.
    """
    record = read_json(folder / JSON_NAME, TuneRecord, "study")
    if trials is not None and trials != record.trials:
        record.trials = trials
        write_json(folder / JSON_NAME, record)
    base = load_resolved(folder / BASE_NAME)
    require_files(files_of(base))
    space = parse_space(record.search)
    study = Study(space, record.rules, folder / JOURNAL)
    tried = [{one.key: value} for one in space for value in one.examples()]
    for settings in (*tried, *(trial.parameters for trial in study.trials)):
        require_trusted(code_of(base) | code_in(settings), str(folder), trust=trust)
    objective = JobTrials(base, folder, record.rules.shares)
    print_line(f"{_missing(study, record)} of {record.trials} trials to make, in {folder}")
    interrupted, failures = False, 0
    try:
        while _missing(study, record) > 0 and failures < MOST_FAILURES:
            trial = study.advance(objective)
            failures = failures + 1 if trial.state == "failed" else 0
            print_line(_line(trial, record.trials))
            _tidy(folder, study)
            _write(folder, base, study)
    except KeyboardInterrupt:
        interrupted = True
        print_line(f"interrupted; go on with: shadowsync tune --resume {folder}")
    if failures >= MOST_FAILURES:
        print_line(f"{failures} trials in a row failed, the last one with: {study.trials[-1].why}")
    _write(folder, base, study)
    _print(study, folder, console)
    if interrupted:
        return ExitCode.INTERRUPTED
    failed = study.best is None or any(trial.state == "failed" for trial in study.trials)
    return ExitCode.FINISHED_WITH_DEATHS if failed else ExitCode.OK


def _missing(study: Study, record: TuneRecord) -> int:
    """Return the number of trials to make; an interrupted one is made anew."""
    return record.trials - sum(trial.state != "interrupted" for trial in study.trials)


def _tidy(folder: Path, study: Study) -> None:
    """Keep the checkpoints of the best trial only."""
    best = study.best
    for trial in study.trials:
        if trial.folder and (best is None or trial.number != best.number):
            remove_all(folder / trial.folder)


def _write(folder: Path, base: Job, study: Study) -> None:
    """Write the table of all trials, and the job of the best one."""
    best = study.best
    rows = [[str(trial.number), *_cells(trial)] for trial in _ranked(study)]
    lines = [f"# Study of {plain(base.run.name)}", ""]
    if best is not None:
        job = trial_job(base, best.parameters, base.run.name, base.run.directory)
        with atomic_file(folder / BEST_NAME) as file:
            file.write(job.model_dump_json(indent=1).encode() + b"\n")
        lines += [f"Best: trial {best.number}, NE {number(best.ne)}: {_settings(best)}", ""]
    lines += markdown_table(["trial", "settings", "state", "NE", "examples"], rows)
    with atomic_file(folder / MARKDOWN_NAME) as file:
        file.write(("\n".join(lines) + "\n").encode())


def _print(study: Study, folder: Path, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in ("trial", "settings", "state", "NE", "examples"):
        table.add_column(title, overflow="fold", justify="left" if title == "settings" else "right")
    for trial in _ranked(study)[:_SHOWN]:
        cells = [str(trial.number), *_cells(trial)]
        table.add_row(*map(Text, cells), style="bold red" if trial.state == "failed" else "")
    console.print(table)
    best = study.best
    if best is not None:
        console.print(Text(f"Best: {' '.join(as_options(best.parameters))}", style="bold green"))
        console.print(Text(f"job: {folder / BEST_NAME}"))


def _ranked(study: Study) -> list[Trial]:
    """Return the trials, the best first, and stopped ones by their last rung."""
    return sorted(
        study.trials,
        key=lambda trial: (
            trial.ne if trial.ne is not None else float("inf"),
            -len(trial.rungs),
            trial.rungs[-1:] or [float("inf")],
            trial.number,
        ),
    )


def _cells(trial: Trial) -> list[str]:
    shown = trial.ne if trial.ne is not None else next(iter(trial.rungs[-1:]), None)
    ne = number(shown) + (f" at rung {len(trial.rungs)}" if trial.ne is None and trial.rungs else "")
    return [_settings(trial), trial.state, ne, count(trial.examples)]


def _settings(trial: Trial) -> str:
    return ", ".join(
        f"{key} = {value:.4g}" if isinstance(value, float) else f"{key} = {value}"
        for key, value in trial.parameters.items()
    )


def _line(trial: Trial, trials: int) -> str:
    start = f"{trial.number + 1:>4}/{trials}  {_settings(trial)}"
    if trial.state == "failed":
        return f"{start}: FAILED: {trial.why}"
    _, state, ne, examples = _cells(trial)
    return f"{start}: {state}, NE {ne}, {examples} examples"
