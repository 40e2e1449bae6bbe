"""Metrics of ranking and calibration, from the histogram of `QualitySums`.

All metrics count an example by its sample weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from ..types import NEED_PROBABILITIES, Float64Array
from .quality import QualitySums

CURVE_BINS: Final = 20
TOP_SHARE: Final = 0.1


class CalibrationPoint(NamedTuple):
    """One of the equal parts into which the examples are cut by score.

    Attributes:
        examples: weight of the examples in the part.
        predicted: mean probability.
        rate: mean label.
    """

    examples: float
    predicted: float
    rate: float


class RankingMetrics(NamedTuple):
    """Metrics of ranking and calibration.

    Attributes:
        pr_auc: average precision, the area under the curve of precision over recall: the sum over thresholds
            of precision times the growth of recall. None without both labels.
        lift: label rate of the tenth with the highest scores, divided by that of all examples. None without
            both labels.
        calibration_error: expected calibration error: the weighted mean of |predicted - rate| over the curve.
        curve: up to CURVE_BINS equal parts of the examples, by ascending score.
    """

    pr_auc: float | None
    lift: float | None
    calibration_error: float
    curve: tuple[CalibrationPoint, ...]


def metrics_of(
    sums: QualitySums, ranking: RankingMetrics, *, of_logits: bool = True
) -> dict[str, float | None]:
    """Return the metrics that are one number, by name.

    "ne", "auc", "logloss" and "calibration" are those of `sums`; `ranking` is `ranking_metrics` of them. If
    scores are no logits (`of_logits`), NEED_PROBABILITIES are None. Raises DataError without examples, or
    without any weight.
    """
    metrics: dict[str, float | None] = {
        "ne": sums.ne,
        "auc": sums.auc,
        "logloss": sums.logloss,
        "calibration": sums.calibration,
        "pr_auc": ranking.pr_auc,
        "lift": ranking.lift,
        "calibration_error": ranking.calibration_error,
    }
    return metrics if of_logits else metrics | dict.fromkeys(NEED_PROBABILITIES)


def metrics_by_label(
    sums: QualitySums, labels: Sequence[str], *, of_logits: bool = True
) -> dict[str, float | None]:
    """Return the metrics of each label of a job in one dictionary.

    Those of the first label have their own names, as in `metrics_of`; "ne/LABEL" is the NE of a further one.
    Raises as `metrics_of`.
    """
    all_metrics = metrics_of(sums, ranking_metrics(sums), of_logits=of_logits)
    for label, other in list(sums.by_label(labels).items())[1:]:
        metrics = metrics_of(other, ranking_metrics(other), of_logits=of_logits)
        all_metrics |= {f"{name}/{label}": value for name, value in metrics.items()}
    return all_metrics


def ranking_metrics(sums: QualitySums) -> RankingMetrics:
    """Compute the metrics; raises DataError without examples, or without any weight."""
    negatives, positives, probabilities = sums.histogram()
    curve = calibration_curve(negatives, positives, probabilities)
    error = sum(part.examples * abs(part.predicted - part.rate) for part in curve) / sum(
        part.examples for part in curve
    )
    if not (negatives.sum() > 0.0 and positives.sum() > 0.0):
        return RankingMetrics(None, None, error, curve)
    above = np.cumsum(positives[::-1])
    precision = above / np.cumsum((negatives + positives)[::-1])
    pr_auc = min(1.0, float(np.dot(positives[::-1] / above[-1], precision)))
    return RankingMetrics(pr_auc, _lift(negatives, positives), error, curve)


def calibration_curve(
    negatives: Float64Array, positives: Float64Array, probabilities: Float64Array, bins: int = CURVE_BINS
) -> tuple[CalibrationPoint, ...]:
    """Cut the examples into `bins` parts of equal weight, by ascending score.

    The arrays are those of `QualitySums.histogram`. A bin of the histogram at a cut is divided between both
    parts. Parts without examples are left out.
    """
    every = negatives + positives
    total = float(every.sum())
    edges = np.linspace(0.0, total, bins + 1)
    parts = [np.diff(_below(values, every, edges)) for values in (every, every * probabilities, positives)]
    return tuple(
        CalibrationPoint(float(weight), min(1.0, float(predicted / weight)), min(1.0, float(label / weight)))
        for weight, predicted, label in zip(*parts, strict=True)
        if weight > 0.0
    )


def _lift(negatives: Float64Array, positives: Float64Array) -> float:
    every = negatives + positives
    total, clicks = float(every.sum()), float(positives.sum())
    below = float(_below(positives, every, np.array([(1.0 - TOP_SHARE) * total]))[0])
    return (clicks - below) / (TOP_SHARE * clicks)


def _below(values: Float64Array, weights: Float64Array, edges: Float64Array) -> Float64Array:
    """Return the sums of values below each edge of the summed weights."""
    ends = np.concatenate([[0.0], np.cumsum(weights)])
    ends *= edges[-1] / ends[-1] if edges[-1] > ends[-1] else 1.0
    result: Float64Array = np.interp(edges, ends, np.concatenate([[0.0], np.cumsum(values)]))
    return result
