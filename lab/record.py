"""compare.json: what was compared, and every run of it; `--resume` reads it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ..pipeline.checkpoint.whole_file import whole_file
from ..pipeline.errors import JobFileError
from ..pipeline.report.model import Hardware, Report

JSON_NAME: Final = "compare.json"
FORMAT_VERSION: Final = 1


class Part(BaseModel):
    """Base of all parts: no unknown keys, no NaN."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Figures(Part):
    """What one run's report says; None for what was not measured."""

    model: str | None
    ne: float | None
    auc: float | None
    gain_ratio: float | None
    ne_progressive: float | None
    examples_per_second: float | None
    steps_per_second: float | None
    cpu_seconds_per_million: float | None
    sync_bytes: int
    rounds: int
    round_seconds: float | None
    gap_mean: float | None
    gap_max: float | None
    divergence: float | None
    trained: int
    wall_seconds: float
    ledger_adds_up: bool
    relay_cpu_seconds: float | None

    @classmethod
    def of(cls, report: Report, batch: int) -> Figures:
        """The figures of a report of a job with this batch size."""
        speed, score = report.throughput.examples_per_second, report.eval
        return cls(
            model=score.model if score else None,
            ne=score.ne if score else None,
            auc=score.auc if score else None,
            gain_ratio=score.gain_ratio if score else None,
            ne_progressive=report.train.ne_progressive,
            examples_per_second=speed,
            steps_per_second=None if speed is None else speed / batch,
            cpu_seconds_per_million=report.throughput.cpu_seconds_per_million,
            sync_bytes=report.sync.bytes,
            rounds=report.sync.rounds,
            round_seconds=report.sync.seconds_mean,
            gap_mean=report.sync.gap_mean,
            gap_max=report.sync.gap_max,
            divergence=report.replicas.divergence,
            trained=report.examples.trained,
            wall_seconds=report.wall_seconds,
            ledger_adds_up=report.ledger.adds_up,
            relay_cpu_seconds=report.network.relay_cpu_seconds if report.network else None,
        )


class Run(Part):
    """One run of the comparison, in the order in which they are started.

    `figures` are there for a run that trained to its end (exit codes 0, 5 and 7); `message` is what it said
    last. `folder` is relative to the comparison's.
    """

    label: str
    seed: int
    name: str
    status: Literal["waiting", "finished", "failed"] = "waiting"
    exit_code: int | None = None
    message: str = ""
    folder: str | None = None
    figures: Figures | None = None


class CellRecord(Part):
    """A cell as it was asked for, and what it came to in the job."""

    label: str
    algorithm: str
    mode: str
    every: int | None
    options: dict[str, Any]
    trainers: int


class Comparison(Part):
    """All of compare.json. `network` says in words what was emulated, and `means` how."""

    format_version: Literal[1] = 1
    name: str
    started_at: str
    complete: bool = False
    seeds: list[int]
    cells: list[CellRecord]
    runs: list[Run]
    network: str | None
    means: str | None = None
    batch: int
    hardware: Hardware
    versions: dict[str, str]
    summary: list[dict[str, Any]] = []

    def of(self, label: str) -> list[Run]:
        """The runs of a cell, by seed."""
        return sorted((run for run in self.runs if run.label == label), key=lambda run: run.seed)

    def missing(self) -> list[Run]:
        """The runs that are still to be made: those that failed too."""
        return [run for run in self.runs if run.status != "finished"]


def write_record(folder: Path, comparison: Comparison) -> None:
    """Writes compare.json, whole or not at all; raises ResourceError."""
    with whole_file(folder / JSON_NAME) as file:
        file.write(comparison.model_dump_json(indent=1).encode() + b"\n")


def read_record(folder: Path) -> Comparison:
    """The comparison of a folder; raises JobFileError."""
    path = folder / JSON_NAME
    try:
        return Comparison.model_validate_json(path.read_bytes())
    except OSError as error:
        raise JobFileError(
            f"cannot be read ({error.strerror})", where=str(path), remedy="give a comparison's folder"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise JobFileError(f"is no comparison ({where}: {first['msg']})", where=str(path)) from error
