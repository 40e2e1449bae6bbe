"""Metrics of a model of one's own, in validations, reports and `shadowsync eval`.

The class of the model has an attribute `metrics`, and `validation.own` lists names of it:

    class PairAccuracy:
        def add(self, scores, batch): ...   # NumPy: float32 [B] or [B, T], and a MetricBatch
        def result(self): ...               # a number, or None if it is not defined

One object sees all examples of a scoring pass, batch by batch, on one thread. A higher result is better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...config.job import Job
from ...errors import JobFileError
from ...types import Float32Array, Int64Array, Uint64Array

_WHERE = "validation.own"


@dataclass(frozen=True, slots=True)
class MetricBatch:
    """What a metric of one's own sees of a batch.

    Attributes:
        labels: float32 [B], each 0.0 or 1.0; [B, T] of T labels.
        weights: sample weights, float32 [B]; None for a job without.
        groups: for each column of kind "group" the hash of each value, uint64 [B]; 0 where it is missing.
        positions: the number of each example's row in its file, from 0, int64 [B]; None for a job without a
            column of kind "row_number".
    """

    labels: Float32Array
    weights: Float32Array | None
    groups: Mapping[str, Uint64Array]
    positions: Int64Array | None = None


class OwnMetrics:
    """The metrics that a job names, over one scoring pass; not thread-safe.

    Args:
        job: the job, with `validation.own`.
        model: the class of its model.

    Raises JobFileError for a name that the class does not have.
    """

    def __init__(self, job: Job, model: Any) -> None:
        self._stored, self._row_number = list(job.data.columns_as("group")), job.data.row_number
        self._model_name = job.model.name
        known = getattr(model, "metrics", {})
        self._metrics: dict[str, Any] = {}
        for name in job.validation.own:
            if not (isinstance(known, Mapping) and name in known):
                names = ", ".join(map(str, known)) if isinstance(known, Mapping) and known else "none"
                raise JobFileError(
                    f"{name!r} given; the attribute metrics of {job.model.name} has {names}", where=_WHERE
                )
            try:
                self._metrics[name] = known[name]()
            except Exception as error:
                raise self._fault(name, error) from error

    def add(
        self, scores: Float32Array, labels: Float32Array, weights: Float32Array | None, groups: Uint64Array
    ) -> None:
        """Add B examples, with `groups` as `Batch.groups` has them.

        Raises JobFileError, with the metric's name, for an exception.
        """
        if not self._metrics:
            return
        by_name = dict(zip(self._stored, groups, strict=True))
        numbers = by_name.pop(self._row_number, None)
        batch = MetricBatch(labels, weights, by_name, None if numbers is None else numbers.view(np.int64))
        for name, metric in self._metrics.items():
            try:
                metric.add(scores, batch)
            except Exception as error:
                raise self._fault(name, error) from error

    def results(self) -> dict[str, float | None]:
        """Return the metrics by name; None for one that is not defined, or not finite.

        Raises JobFileError for a result that is no number.
        """
        results: dict[str, float | None] = {}
        for name, metric in self._metrics.items():
            try:
                value = metric.result()
                number = None if value is None else float(value)
            except Exception as error:
                raise self._fault(name, error) from error
            results[name] = number if number is not None and math.isfinite(number) else None
        return results

    def _fault(self, name: str, error: Exception) -> JobFileError:
        return JobFileError(
            f"{name} of {self._model_name} failed: {type(error).__name__}: {error}",
            where=_WHERE,
            remedy="a metric's class has __init__(self), add(self, scores, batch) and result(self)",
        )


def check_own_metrics(job: Job, model: Any) -> None:
    """Raise JobFileError unless the job's own metrics take 2 examples and give numbers."""
    metrics, several = OwnMetrics(job, model), len(job.data.label_names)
    labels = np.array([0, 1], np.float32)
    if several > 1:
        labels = np.tile(labels[:, None], (1, several))
    weights = np.ones(2, np.float32) if job.data.columns_as("weight") else None
    groups = np.ones((len(job.data.columns_as("group")), 2), np.uint64)
    metrics.add(np.zeros_like(labels), labels, weights, groups)
    metrics.results()
