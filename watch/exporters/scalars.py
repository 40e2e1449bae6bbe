"""Scalars for TensorBoard and experiment trackers, from statuses."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from ..status import Status

FIRST_PERIOD_SECONDS = 1.0
STEPS_PER_PERIOD = 600

log = logging.getLogger(__name__)


def scalars_of(status: Status) -> dict[str, float]:
    """Return the measured scalars by tag; `Scalars` writes them at `progress.distinct`.

    Those of a hub of attached loops are at the steps of all loops.
    """
    scalars: dict[str, float | None] = {
        "ne/all": status.quality.ne,
        "ne/recent": status.quality.ne_recent,
        "examples_per_second/all": status.speed.now,
        "sync/gap_mean": status.sync.gap_mean,
        "sync/gap_open": status.sync.gap_open,
        "sync/rounds": status.sync.rounds,
        "sync/sent_bytes_per_second": status.sync.sent_bytes_per_second,
        "sync/divergence": status.sync.divergence,
        "embedding/lookups_per_second": status.embedding.lookups_per_second,
        "embedding/staleness_mean": status.embedding.staleness_mean,
    }
    for name, label in list(status.quality.labels.items())[1:]:
        scalars |= {f"ne/{name}/all": label.ne, f"ne/{name}/recent": label.ne_recent}
    for node in status.nodes:
        if node.role == "trainer" and node.alive:
            scalars[f"examples_per_second/{node.name}"] = node.examples_per_second
        if node.role == "loop" and node.alive:
            scalars[f"steps_per_second/{node.name}"] = node.steps_per_second
    if status.loops is not None:
        scalars["steps_per_second/all"] = status.loops.per_second
    return {tag: float(value) for tag, value in scalars.items() if value is not None}


class ScalarWriter(Protocol):
    """Where scalars are written. One thread."""

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of one step; raises OSError."""

    def close(self) -> None:
        """End; nothing follows."""


class Scalars:
    """Statuses as scalars of a writer. One thread.

    It writes one status per second at first; the period doubles after every STEPS_PER_PERIOD statuses, so
    that a long run stays small. If a write fails, it logs an error and stops writing, and training continues.
    """

    def __init__(self, writer: ScalarWriter) -> None:
        self._writer: ScalarWriter | None = writer
        self._period = FIRST_PERIOD_SECONDS
        self._written = 0
        self._written_at = float("-inf")
        self._validated = 0

    def publish(self, status: Status) -> None:
        """Write a newer status if one is due."""
        due = status.ended or status.seconds - self._written_at >= self._period
        step = status.progress.distinct if status.loops is None else status.loops.steps
        if not due or not step:
            return
        self.add(step, scalars_of(status))
        for validation in status.validation[self._validated :]:
            metrics = {status.validation_metric: validation.value} | validation.metrics
            self.add(validation.examples, {f"{name}/validation": value for name, value in metrics.items()})
        self._validated = len(status.validation)
        self._written_at = status.seconds
        self._written += 1
        if self._written % STEPS_PER_PERIOD == 0:
            self._period *= 2

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of one step, unless an earlier one could not be written."""
        if self._writer is None:
            return
        try:
            self._writer.add(step, values)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            log.error("%scannot be written (%s); no more scalars are written", where, error.strerror)
            self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
