"""Number of parts per batch, with one dense update for each."""

from __future__ import annotations

from ...pipeline.types import Int64Array

_PART_UNIT = 1000


class PartsSetting:
    """The parts of a batch on average, shared by the workers of a trainer.

    `set` is for the control thread; any thread or worker process may read.

    Args:
        state: int64 [1], zeros, in memory of all the trainer's processes: thousandths beyond one part.
    """

    SIZE = 1

    def __init__(self, state: Int64Array) -> None:
        self._state = state

    @property
    def thousandths(self) -> int:
        """Return a thousand times the parts, at least 1000."""
        return _PART_UNIT + int(self._state[0])

    @property
    def parts(self) -> float:
        """Return the parts of a batch on average, at least 1."""
        return self.thousandths / _PART_UNIT

    def set(self, parts: float) -> None:
        """Cut batches into so many parts from now on, at least 1; thousandths count."""
        self._state[0] = round(parts * _PART_UNIT) - _PART_UNIT


class PartsOfBatches:
    """Whole numbers of parts for the batches of one worker, right on average.

    A batch has the parts that are due, rounded down; what is left over is carried to the next one.
    """

    def __init__(self, setting: PartsSetting) -> None:
        self._setting = setting
        self._carried = 0

    def next(self) -> int:
        """Return the parts of the next batch, at least 1."""
        parts, self._carried = divmod(self._setting.thousandths + self._carried, _PART_UNIT)
        return parts
