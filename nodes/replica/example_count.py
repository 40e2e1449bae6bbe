"""How many examples all trainers have trained, as one trainer knows it between two heartbeats."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_OTHERS, _OWN, _RATIO = range(3)
_RATIO_UNIT = 1_000_000
_LARGEST_RATIO = 1e6


class ExampleCount:
    """The count that learning-rate schedules go by.

    The coordinator tells its count with every heartbeat. In between, the others are taken to train in the
    proportion to this trainer in which they did last, so that no clock is read. A trainer that is alone
    counts only what its own workers trained: its schedule is exact, and repeats bit for bit.

    `start` and `told` are for the control thread; any thread or worker process may call `now`. A mixture of
    an old and a new state is off by the examples of a heartbeat.

    Args:
        alone: whether the job has one trainer.
        state: int64 [3], zeros, where all of a trainer's processes see it: the others' examples, this
            trainer's at that time, and the proportion in millionths.
    """

    SIZE = 3

    def __init__(self, *, alone: bool, state: NDArray[np.int64]) -> None:
        self._alone = alone
        self._state = state

    def start(self, examples: int) -> None:
        """The job begins with so many examples that the run which it goes on with has trained."""
        self._state[_OTHERS] = examples

    def told(self, total: int, own: int) -> None:
        """The coordinator has `total` examples, `own` of them confirmed to this trainer's workers."""
        if self._alone:
            return
        others = max(total - own, int(self._state[_OTHERS]))
        gained = own - int(self._state[_OWN])
        if gained > 0:
            ratio = min(_LARGEST_RATIO, (others - int(self._state[_OTHERS])) / gained)
            self._state[_RATIO] = round(ratio * _RATIO_UNIT)
            self._state[_OWN] = own
        self._state[_OTHERS] = others

    def now(self, own: int) -> int:
        """All trainers' examples, when this trainer's workers have trained `own`."""
        ahead = int(self._state[_RATIO]) * max(0, own - int(self._state[_OWN])) // _RATIO_UNIT
        return own + int(self._state[_OTHERS]) + ahead
