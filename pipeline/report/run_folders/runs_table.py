"""The runs of a folder beside each other: their quality, and the settings in which they differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final, overload

from ...errors import DataError
from ...text.format import MISSING, count, number
from ...text.html import html_table
from ..document import Report
from ..quality import Evaluation
from ..rendering.notebook import FolderReport
from .run_folder import LATEST
from .write import JSON_NAME, read_report

JOB_NAME: Final = "job.json"
NO_REPORT: Final = "no report"
# They differ in every two runs, and the first column says them.
_OF_FOLDER: Final = ("run.name", "run.directory")
_COLUMNS: Final = "data.columns."
_KIND: Final = "kind"
_LONGEST_SETTING: Final = 32
_LONGEST_OUTCOME: Final = 60


@dataclass(frozen=True, slots=True)
class Run:
    """A run, of which `report` is None while it trains, and if it was killed.

    Attributes:
        settings: every setting of its job by "section.key", defaults included.
        fault: why `report` cannot be read; "" otherwise.
    """

    folder: Path
    settings: Mapping[str, Any]
    report: Report | None
    fault: str = ""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    @property
    def outcome(self) -> str:
        """How it ended; "no report" if that is not known."""
        return self.report.outcome if self.report is not None else self.fault or NO_REPORT

    @property
    def figures(self) -> dict[str, float | None]:
        """Its figures by name; None for what was not measured."""
        report = self.report
        if report is None:
            return dict.fromkeys(_FIGURES)
        scores = report.headline
        return {
            "examples": report.restored_examples + report.examples.distinct,
            "examples/s": report.throughput.examples_per_second,
            "NE": None if scores is None else scores.ne,
            "AUC": None if scores is None else scores.auc,
            **_ranks(scores),
            "NE in training": report.train.ne_progressive,
        }


def _ranks(scores: Evaluation | None) -> dict[str, float | None]:
    """Return the figures of the first items of a catalogue or, for a job without, of the rows of a group."""
    figures = None if scores is None else scores.retrieval or scores.within_groups
    names = {"recall": "recall", "NDCG": "ndcg", "MRR": "mrr"}
    return {name: getattr(figures, field, None) for name, field in names.items()}


_FIGURES: Final[Mapping[str, Callable[[float | None], str]]] = {
    "examples": count,
    "examples/s": count,
    "NE": number,
    "AUC": number,
    "recall": number,
    "NDCG": number,
    "MRR": number,
    "NE in training": number,
}
SORTS: Final = ("name", "start", *_FIGURES)
"""What runs can be sorted by."""


class Runs(Sequence[Run]):
    """Some runs, in order.

    Attributes:
        differing: the settings that are not the same in all of them, as "section.key".
        measured: the names of the figures that any of them has.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = tuple(runs)
        self.differing = _differing(self._runs)
        figures = [run.figures for run in self._runs]
        self.measured = tuple(name for name in _FIGURES if any(each[name] is not None for each in figures))

    @overload
    def __getitem__(self, index: int) -> Run: ...

    @overload
    def __getitem__(self, index: slice) -> Runs: ...

    def __getitem__(self, index: int | slice) -> Run | Runs:
        return Runs(self._runs[index]) if isinstance(index, slice) else self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each run: `run`, `outcome`, its figures, its differing settings.

        `pandas.DataFrame(runs.rows())` is a table of them.
        """
        return [
            {"run": run.name, "outcome": run.outcome, **run.figures}
            | {key: run.settings.get(key) for key in self.differing}
            for run in self._runs
        ]

    def texts(self) -> list[dict[str, str]]:
        """Return `rows` as the command prints them, without the figures that no run has."""
        unmeasured = _FIGURES.keys() - self.measured
        return [
            {name: _text(name, value) for name, value in row.items() if name not in unmeasured}
            for row in self.rows()
        ]

    def _repr_html_(self) -> str:
        names = ["run", "outcome", *self.measured, *self.differing]
        return html_table(names, ([row[name] for name in names] for row in self.texts()))


def list_runs(directory: str | PathLike[str] = "runs", *, sort: str = "start") -> Runs:
    """Return the runs in a directory, those of compared, tuned and other folders below it not among them.

    Args:
        directory: where the runs are: `run.directory` of their jobs.
        sort: one of `SORTS`; by NE the lowest first, by other figures the highest. What lacks it is last.

    Any thread may call; it reads two files of each run. Raises DataError if the directory cannot be read or
    has no run, ValueError for another `sort`.
    """
    if sort not in SORTS:
        raise ValueError(f"sort={sort!r}: one of {', '.join(SORTS)} is needed")
    directory = Path(directory)
    try:
        folders = [path for path in directory.iterdir() if path.name != LATEST]
    except OSError as error:
        raise DataError(
            f"cannot be read ({error.strerror})", where=str(directory), remedy="give the folder with the runs"
        ) from error
    runs = [run for folder in folders if (run := _read(folder)) is not None]
    if not runs:
        raise DataError(
            f"has no run (a folder with {JOB_NAME})", where=str(directory), remedy="give the folder of runs"
        )
    return Runs(sorted(runs, key=_order(sort)))


def rows_beside(folder: Path) -> list[dict[str, str]]:
    """Return the texts of all runs in the folder of a run, the newest first; none if they cannot be read."""
    try:
        return list_runs(folder.parent).texts()[::-1]
    except DataError:
        return []


def _read(folder: Path) -> Run | None:
    try:
        tree = json.loads((folder / JOB_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # Not a run, or one that is just being made.
        return None
    if not isinstance(tree, dict):
        return None
    settings = dict(flat_settings(tree))
    try:
        return Run(folder, settings, FolderReport.of(read_report(folder / JSON_NAME), folder))
    except FileNotFoundError:
        return Run(folder, settings, None)
    except (OSError, ValueError):
        return Run(folder, settings, None, f"{JSON_NAME} cannot be read")


def _order(sort: str) -> Callable[[Run], Any]:
    def key(run: Run) -> Any:
        if sort == "name":
            return run.name
        if sort == "start":
            return (run.report is None, run.report.started_at if run.report is not None else "", run.name)
        value = run.figures[sort]
        # A small NE is good; of all else much is.
        sign = 1 if sort.startswith("NE") else -1
        return (value is None, sign * (value or 0), run.name)

    return key


def flat_settings(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a job's sections by "section.key"."""
    for name, value in tree.items():
        # A table of options without an option is the same as none.
        if isinstance(value, Mapping):
            yield from flat_settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _differing(runs: Sequence[Run]) -> tuple[str, ...]:
    names = dict.fromkeys(name for run in runs for name in run.settings)
    return tuple(name for name in names if name not in _OF_FOLDER and _differs(name, runs))


def _differs(name: str, runs: Sequence[Run]) -> bool:
    """Return whether a setting is not the same in all of the runs.

    The kind of a column says which runs lack it; of its other settings they have nothing to say.
    """
    column, _, key = name.rpartition(".")
    if column.startswith(_COLUMNS) and key != _KIND:
        runs = [run for run in runs if f"{column}.{_KIND}" in run.settings]
    values = [run.settings.get(name) for run in runs]
    return any(value != values[0] for value in values)


def _text(name: str, value: Any) -> str:
    if name == "run":
        return str(value)
    if name == "outcome":
        return _cut(str(value), _LONGEST_OUTCOME)
    if name in _FIGURES:
        return _FIGURES[name](value)
    text = MISSING if value is None else value if isinstance(value, str) else json.dumps(value)
    return _cut(text, _LONGEST_SETTING)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
