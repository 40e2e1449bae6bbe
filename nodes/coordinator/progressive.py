"""The progressive part of training: batches that are scored before their step."""

from __future__ import annotations

import numpy as np

from ...pipeline.quality import QualitySums
from ...pipeline.report.model import Progressive
from .outcome import Answers

MODEL = "each trainer's replica before its step"


def take_progressive(trainers: Answers) -> QualitySums:
    """Sum the scores of all trainers; removes them from `trainers`.

    Those of a trainer that died are lost with it.
    """
    total = QualitySums()
    for answer in trainers.values():
        total.merge(QualitySums.from_array(np.frombuffer(answer.pop("progressive"), dtype=np.float64)))
    return total


def progressive_report(sums: QualitySums | None, trained: int) -> Progressive:
    """Build the report's part, for `trained` distinct examples; without sums none are scored."""
    if sums is None or not sums.examples:
        return Progressive(
            model=MODEL, examples=0, trained=trained, ne=None, auc=None, auc_error=None, logloss=None
        )
    return Progressive(
        model=MODEL,
        examples=sums.examples,
        trained=trained,
        ne=sums.ne,
        auc=sums.auc,
        auc_error=sums.auc_error,
        logloss=sums.logloss,
    )
