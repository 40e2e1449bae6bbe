"""Facts of a job: input, origin, divergence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ....pipeline.data.parquet import IdClass
from ....pipeline.types import BatchId
from .progress import InputSize

FIRST_PERIOD_SECONDS: Final = 1.0
MAX_POINTS: Final = 512


@dataclass(frozen=True)
class Origin:
    """The origin of a resumed run; all empty for a new one.

    Attributes:
        run: the name of the run before.
        digest: of the checkpoint.
        applied_before: by shard, the batches that it had applied and the saved ledger has not.
    """

    run: str = ""
    digest: str = ""
    applied_before: Mapping[str, frozenset[BatchId]] = field(default_factory=dict)


@dataclass(frozen=True)
class InputFacts:
    """Facts of the job's input.

    Attributes:
        progressive: numbers of the spans whose batches are scored before their step.
        id_classes: by table, what its ids are read as.
    """

    size: InputSize
    progressive: frozenset[int] = frozenset()
    id_classes: Mapping[str, IdClass] = field(default_factory=dict)


@dataclass
class DivergenceCurve:
    """Points (seconds, divergence), thinned to every second one whenever there are MAX_POINTS."""

    points: list[tuple[float, float]] = field(default_factory=list)
    period_seconds: float = FIRST_PERIOD_SECONDS

    def add(self, seconds: float, value: float) -> None:
        """Add one point."""
        self.points.append((seconds, value))
        if len(self.points) >= MAX_POINTS:
            self.points, self.period_seconds = self.points[::2], self.period_seconds * 2
