"""Counts of one part of a generated click log, exact whatever the chunks."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .columns import ID_COLUMNS
from .manifest import LogFile, PartManifest

# Loglosses are summed as whole multiples of this, in nats: integers add up to the same in any order.
_LOGLOSS_UNIT: Final = 2.0**-32


class PartTally:
    """Adds up chunks of rows. Memory: one byte an id. One thread."""

    def __init__(self) -> None:
        self._examples = 0
        self._positives = 0
        self._logloss_units = 0
        # One flag an id, and one for the rank -1 of a missing id.
        self._seen = [np.zeros(column.cardinality + 1, np.bool_) for column in ID_COLUMNS]

    def add(self, labels: NDArray[np.bool_], chances: NDArray[np.float64], ranks: NDArray[np.int32]) -> None:
        """Adds rows: labels [n], the teacher's chances [n], ranks [26, n] with -1 for missing."""
        self._examples += len(labels)
        self._positives += int(np.count_nonzero(labels))
        losses = -np.log(np.where(labels, chances, 1.0 - chances))
        self._logloss_units += int(np.rint(losses / _LOGLOSS_UNIT).astype(np.int64).sum())
        for seen, rank in zip(self._seen, ranks, strict=True):
            seen[rank] = True

    def manifest(self, files: tuple[LogFile, ...]) -> PartManifest:
        """What was counted so far, as the manifest of a part that has these files."""
        logloss = self._logloss_units * _LOGLOSS_UNIT / self._examples if self._examples else None
        mean_entropy = self._entropy_of_mean()
        return PartManifest(
            files=files,
            examples=self._examples,
            positives=self._positives,
            teacher_logloss=logloss,
            teacher_ne=logloss / mean_entropy if logloss is not None and mean_entropy > 0 else None,
            distinct_ids=sum(int(np.count_nonzero(seen[:-1])) for seen in self._seen),
            bytes=sum(file.bytes for file in files),
        )

    def _entropy_of_mean(self) -> float:
        if self._positives in (0, self._examples):
            return 0.0
        mean = self._positives / self._examples
        return -(mean * math.log(mean) + (1.0 - mean) * math.log1p(-mean))
