"""Jobs to run, and what their run folders say."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.report.quality import Evaluation
from shadowsync.pipeline.report.run_folders.write import read_report

from ..expected import present
from .processes import wait_until

EXAMPLES = 20_000
EVAL_EXAMPLES = 4_000

Settings = Mapping[str, Mapping[str, Any]]
JobMaker = Callable[..., Path]


def small_job(log: Path, runs: Path) -> dict[str, dict[str, Any]]:
    """A job of 20,000 examples with every setting small: a second of training, as the log is read."""
    return {
        "run": {"name": "small", "directory": str(runs), "start_timeout_seconds": 120.0},
        "data": {
            "format": "parquet",
            "path": str(log / "train-*.parquet"),
            "eval_path": str(log / "eval-*.parquet"),
            "shuffle_window": 4096,
        },
        # Its bias is drawn, so that a model that has learned nothing scores worse than the label rate.
        "model": {
            "embedding_dim": 8,
            "table_rows": 2000,
            "bottom": [32],
            "top": [32],
            "output_bias": "drawn",
        },
        # The same on every machine: bfloat16 is for the tests that are about it.
        "trainer": {"count": 2, "batch": 128, "precision": "float32"},
        "embedding": {"nodes": 1},
        "sync": {"algorithm": "easgd", "nodes": 1},
        # They take as long as the training.
        "report": {"pictures": False},
    }


def write_job(path: Path, base: Settings, changes: Settings) -> Path:
    """A job file: the settings of `base`, with those of `changes`; a key that is None is left out."""
    lines = []
    for section in dict.fromkeys([*base, *changes]):
        lines.append(f"[{section}]")
        merged = {**base.get(section, {}), **changes.get(section, {})}
        for key, value in merged.items():
            if value is not None:
                # Texts, numbers, booleans and lists of them are written alike in JSON and TOML.
                lines.append(f"{key} = {_toml(value)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


class RunFolder:
    """What a run left, or is leaving, in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def report(self) -> Report:
        """The report; fails if there is none."""
        return read_report(self.folder / "report.json")

    @property
    def evaluation(self) -> Evaluation:
        """That of the report; fails if there is none."""
        evaluation = self.report.eval
        assert evaluation is not None
        return evaluation

    @property
    def ne(self) -> float:
        """The normalized entropy of the evaluation; fails if there is none."""
        return present(self.evaluation.ne)

    def batches(self) -> int:
        """Batches that the ledger's file has as trained; 0 before there is a file."""
        return int(self.query("SELECT count(*) FROM batches")[0][0])

    def trains(self, count: int) -> bool:
        """Whether it has trained so many batches, and its coordinator says that it trains.

        Trainers do before that, while the coordinator waits until all nodes have begun. Who leaves then
        interrupts the job.
        """
        return self.batches() >= count and self.logged("training starts")

    def reaches(self, count: int, seconds: float) -> bool:
        """Whether so many batches are trained within the time."""
        try:
            wait_until(lambda: self.batches() >= count, f"{count} batches", seconds)
        except AssertionError:
            return False
        return True

    def partial_checkpoint(self, pattern: str = "*") -> list[Path]:
        """Files of the checkpoint that is being written, also while its folder is renamed."""
        try:
            return sorted(self.folder.glob(f"checkpoint.partial-*/{pattern}"))
        except FileNotFoundError:
            return []

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Reads the ledger's file, also while the coordinator writes it."""
        path = self.folder / "ledger.sqlite"
        if not path.exists():
            return [(0,)]
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60.0)) as database:
            try:
                return database.execute(statement).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):
                    return [(0,)]
                raise

    def log(self, node: str) -> list[dict[str, Any]]:
        """The lines of a node's log; of one that is being written, the whole ones."""
        path = self.folder / "logs" / f"{node}.jsonl"
        if not path.exists():
            return []
        text = path.read_text(encoding="utf-8")
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def logged(self, text: str, nodes: Iterable[str] = ("coordinator",)) -> bool:
        """Whether a line with this text is in one of the logs."""
        return any(text in line["text"] for node in nodes for line in self.log(node))


class _Coordinator(Protocol):
    def text(self) -> str: ...

    def interrupt(self) -> None: ...


class _Job(Protocol):
    @property
    def run(self) -> RunFolder: ...

    @property
    def coordinator(self) -> _Coordinator: ...

    def wait(self) -> int: ...


class HasEnd:
    """A job that a test waits for."""

    def ended(self: _Job, code: int = 0, *, distinct: int | None = None) -> Report:
        """Wait for the end of everyone. The exit code is this, and the ledger adds up; gives the report.

        With `distinct` so many examples are trained, each counted once.
        """
        assert self.wait() == code, self.coordinator.text()
        report = self.run.report
        assert report.ledger.adds_up, report.ledger.identities
        if distinct is not None:
            assert report.examples.distinct == distinct
        return report

    def interrupted(self: _Job) -> Report:
        """Have Ctrl-C end it; the ledger adds up, and the report is given."""
        self.coordinator.interrupt()
        return HasEnd.ended(self, ExitCode.INTERRUPTED)

    def ended_whole(
        self: _Job, code: int = ExitCode.FINISHED_WITH_DEATHS, *, distinct: int = EXAMPLES
    ) -> Report:
        """The same of a job that trained all, whatever died: of what was read all is trained or returned, and
        no sum of the ledger is unknown."""
        report = HasEnd.ended(self, code, distinct=distinct)
        assert [one.name for one in report.ledger.identities if one.holds is None] == []
        assert report.examples.read == report.examples.trained + report.examples.returned
        return report
