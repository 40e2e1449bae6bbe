"""Result of an emulated job."""

from __future__ import annotations

from typing import Final

import numpy as np
from pydantic import Field

from ...pipeline.metrics.quality import entropy
from ...pipeline.types import Float32Array, FrozenModel

CURVE_POINTS: Final = 100


class CurvePoint(FrozenModel):
    """One point of the curves of an emulated job.

    Attributes:
        seconds: virtual time.
        examples: examples trained by all trainers until then.
        ne: NE of the examples since the last point, each scored before it is trained on.
        divergence: divergence of the replicas; None for one trainer.
    """

    seconds: float
    examples: int
    ne: float | None
    divergence: float | None


class VirtualLabel(FrozenModel):
    """Figures of one of several labels, see `VirtualResult`."""

    ne: float | None
    auc: float | None
    training_ne: float | None


class VirtualResult(FrozenModel):
    """Result of an emulated job.

    Attributes:
        labels: of a job with several labels, the figures of each by its name; `ne`, `auc`, `training_ne` and
            the curve are of the first.
        ne: NE on the test data; None without any.
        training_ne: NE of the batches of the first epoch, each before its update.
        rounds: complete rounds of all trainers, the closing rounds included, as a report counts them.
        gap_mean: mean iterations of a trainer between two complete rounds, over all trainers.
        early_rounds: rounds in the first 100 iterations, by trainer, as a report counts them.
        staleness: mean number of pushes between a lookup and its own push.
        divergence: divergence at the end of training, before the closing rounds.
        seconds: virtual time until the last batch was trained.
        digest: SHA-256 of the model, or of all replicas if there is no single model.
    """

    ignored_fields = frozenset({"dense_updates", "control"})

    ne: float | None
    auc: float | None
    training_ne: float | None
    examples: int
    iterations: list[int]
    rounds: int
    gap_mean: float | None
    gap_max: int
    early_rounds: list[int]
    staleness: float
    divergence: float | None
    seconds: float
    sync_bytes: int
    left_out: int
    digest: str
    curve: list[CurvePoint]
    labels: dict[str, VirtualLabel] = Field(default_factory=dict)


class LossWindow:
    """The loss of the examples since the last point of a curve."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._loss = 0.0
        self._positives = 0.0

    def add(self, labels: Float32Array, loss: float, weights: Float32Array) -> None:
        """Add a batch: labels, float32 [B], mean loss, and sample weights, [B] or none."""
        each = weights if len(weights) else np.ones_like(labels)
        weight = float(np.sum(each, dtype=np.float64))
        self._weight += weight
        self._loss += loss * weight
        self._positives += float(np.sum(labels * each, dtype=np.float64))

    def take(self) -> float | None:
        """Return the NE since the last call; None without both kinds of labels."""
        weight, loss, positives = self._weight, self._loss, self._positives
        self._weight, self._loss, self._positives = 0.0, 0.0, 0.0
        if not 0.0 < positives < weight:
            return None
        return loss / weight / entropy(positives / weight)
