"""What a finished or stopped job came to: the facts that the report is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..pipeline.metrics.quality import QualitySums
from .stop import Stop

Answers = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Score:
    """The evaluation: of which model, and the sums of each scored model (one, or one a replica)."""

    model: str
    sums: list[QualitySums]


@dataclass
class Outcome:
    """Gathered by the conductor, phase by phase. What was not reached stays None or empty.

    Attributes:
        stop: why the job stopped early; None if its input is trained.
        readers, trainers, shards, syncs: each node's last counts, by name.
        model_saved: which model the checkpoint has; None without a checkpoint.
    """

    stop: Stop | None = None
    readers: Answers = field(default_factory=dict)
    trainers: Answers = field(default_factory=dict)
    shards: Answers = field(default_factory=dict)
    syncs: Answers = field(default_factory=dict)
    divergence: float | None = None
    divergence_curve: list[tuple[float, float]] = field(default_factory=list)
    model_saved: str | None = None
    score: Score | None = None
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
