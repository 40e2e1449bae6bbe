"""The outcome of a finished or stopped job: the facts for the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ...pipeline.performance.document import Profile
from ...pipeline.quality import QualitySums
from .stop import Stop
from .validation_state import ValidationState

# How long a node has: for an answer, for its last counts, and for either where the job was interrupted.
ASK_SECONDS: Final = 60.0
HOLD_SECONDS: Final = 8.0
HURRY_SECONDS: Final = 2.5

Answers = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Score:
    """The evaluation: its model, and sums of each scored one (one, or one per replica)."""

    model: str
    sums: list[QualitySums]


@dataclass(frozen=True)
class Kept:
    """Checkpoints and validation during training.

    Attributes:
        checkpoints, failed_checkpoints: how many were written and could not be.
        validation: the scores; None without `[validation]`.
        best_is_last: whether the last checkpoint is the best one, too.
    """

    checkpoints: int
    failed_checkpoints: int
    validation: ValidationState | None
    best_is_last: bool


@dataclass
class Outcome:
    """Facts gathered phase by phase. What was not reached stays None or empty.

    Attributes:
        stop: why the job stopped early; None if its input is trained, or training ended early and well.
        ended_early: why it did, in words; empty if the whole input is trained.
        readers, trainers, shards, syncs: each node's last counts, by name.
        model_saved: which model the checkpoint has; None without a checkpoint.
        progressive: of the batches that were scored before their step.
        profile: with the events of its trace; None where none was asked for, or nothing could be measured.
        best_score: of the best checkpoint on the held-out files, where it is not the last one.
    """

    stop: Stop | None = None
    ended_early: str = ""
    readers: Answers = field(default_factory=dict)
    trainers: Answers = field(default_factory=dict)
    shards: Answers = field(default_factory=dict)
    syncs: Answers = field(default_factory=dict)
    divergence: float | None = None
    divergence_curve: list[tuple[float, float]] = field(default_factory=list)
    model_saved: str | None = None
    score: Score | None = None
    best_score: Score | None = None
    progressive: QualitySums | None = None
    kept: Kept | None = None
    profile: tuple[Profile, list[dict[str, Any]]] | None = None
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
