"""The content of compare.json; `--resume` reads it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...pipeline.atomic_file import write_text
from ...pipeline.errors import JobFileError
from ...pipeline.report.document import Hardware, Report
from ...pipeline.types import first_fault

JSON_NAME: Final = "compare.json"
FORMAT_VERSION: Final = 1


class ComparisonPart(BaseModel):
    """Base of all parts: no unknown keys, no NaN."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, populate_by_name=True)


class LabelFigures(ComparisonPart):
    """Figures of one of several labels, see `Figures`."""

    ne: float | None
    auc: float | None
    ne_progressive: float | None


UNKNOWN: Final = LabelFigures(ne=None, auc=None, ne_progressive=None)
"""Stands for the figures of a label that a run lacks."""


class Figures(ComparisonPart):
    """Figures of one run's report; None for what was not measured.

    Of several labels they are those of the first, and `labels` has those of each by its name.
    """

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
    labels: dict[str, LabelFigures] = {}

    @classmethod
    def of(cls, report: Report, batch: int) -> Figures:
        """Take the figures from the report of a job.

        `batch` is the job's batch size.
        """
        speed, score = report.throughput.examples_per_second, report.headline
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
            labels={name: _of_label(report, name) for name in report.train.ne_by_label},
        )


def _of_label(report: Report, name: str) -> LabelFigures:
    score = report.headline.labels.get(name) if report.headline is not None else None
    return LabelFigures(
        ne=score.ne if score is not None else None,
        auc=score.auc if score is not None else None,
        ne_progressive=report.train.ne_by_label[name],
    )


class Run(ComparisonPart):
    """One run of the comparison; runs are listed in starting order.

    A run that trained to its end (exit codes 0, 5 and 7) has `figures`; `message` is its last line of output.
    `folder` is relative to the comparison's folder.
    """

    label: str
    seed: int
    name: str
    status: Literal["waiting", "finished", "failed"] = "waiting"
    exit_code: int | None = None
    message: str = ""
    folder: str | None = None
    figures: Figures | None = None


class VariantRecord(ComparisonPart):
    """A variant as requested, and as it is in the job."""

    label: str
    algorithm: str
    mode: str
    every: int | None
    options: dict[str, Any]
    trainers: int


class Comparison(ComparisonPart):
    """The whole comparison.

    `network` describes the emulated network, `means` how it was emulated.
    """

    format_version: Literal[1] = 1
    name: str
    started_at: str
    complete: bool = False
    seeds: list[int]
    variants: list[VariantRecord] = Field(validation_alias="cells", serialization_alias="cells")
    runs: list[Run]
    network: str | None
    means: str | None = None
    batch: int
    hardware: Hardware
    versions: dict[str, str]
    summary: list[dict[str, Any]] = []

    def of(self, label: str) -> list[Run]:
        """Return the runs of a variant, by seed."""
        return sorted((run for run in self.runs if run.label == label), key=lambda run: run.seed)

    def missing(self) -> list[Run]:
        """Return the runs still to be made, failed ones included."""
        return [run for run in self.runs if run.status != "finished"]


Part = TypeVar("Part", bound=BaseModel)


def write_json(path: Path, part: BaseModel) -> None:
    """Write a part of a comparison atomically.

    Raises ResourceError.
    """
    write_text(path, part.model_dump_json(indent=1, by_alias=True) + "\n")


def read_json(path: Path, kind: type[Part], what: str = "comparison") -> Part:
    """Read what `write_json` wrote of a comparison, or of `what`.

    Raises JobFileError.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise JobFileError(
            f"cannot be read ({error.strerror})", where=str(path), remedy=f"give the folder of a {what}"
        ) from error
    except ValidationError as error:
        raise JobFileError(
            f"is not a {what} ({first_fault(error)})",
            where=str(path),
            remedy=f"give the folder of a {what}",
        ) from error


def write_record(folder: Path, comparison: Comparison) -> None:
    """Write compare.json atomically.

    Raises ResourceError.
    """
    write_json(folder / JSON_NAME, comparison)


def read_record(folder: Path) -> Comparison:
    """Read the comparison of a folder.

    Raises JobFileError.
    """
    return read_json(folder / JSON_NAME, Comparison)
