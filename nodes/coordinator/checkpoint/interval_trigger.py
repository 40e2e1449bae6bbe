"""When a checkpoint or a validation is due."""

from __future__ import annotations

import math


class IntervalTrigger:
    """Trigger at multiples of `every_examples` and `every_epochs`, or after `every_seconds`.

    The seconds count from the last trigger. 0 disables a condition. It has no clock: the caller gives the
    examples, seconds and complete epochs so far.

    Args:
        first_seconds: of the first trigger, if that is sooner than `every_seconds`; each further one is due
            after twice as long, up to `every_seconds`.
    """

    def __init__(
        self,
        every_examples: int,
        every_seconds: float,
        every_epochs: int = 0,
        *,
        first_seconds: float = math.inf,
    ) -> None:
        self._every_examples = every_examples
        self._every_seconds = every_seconds
        self._seconds = min(every_seconds, first_seconds)
        self._every_epochs = every_epochs
        self._next_examples = 0
        self._next_epochs = 0
        self._last_seconds: float | None = None

    def now(self, examples: int, seconds: float, epochs: int = 0) -> bool:
        """Return whether it is due."""
        if self._last_seconds is None:
            self._begin(examples, seconds, epochs)
        assert self._last_seconds is not None
        by_examples = self._every_examples > 0 and examples >= self._next_examples
        by_epochs = self._every_epochs > 0 and epochs >= self._next_epochs
        return by_examples or by_epochs or 0 < self._seconds <= seconds - self._last_seconds

    def done(self, examples: int, seconds: float, epochs: int = 0) -> None:
        """Record that it was done or tried at these examples, seconds and epochs."""
        self._seconds = min(2 * self._seconds, self._every_seconds)
        self._begin(examples, seconds, epochs)

    def _begin(self, examples: int, seconds: float, epochs: int) -> None:
        self._last_seconds = seconds
        if self._every_examples:
            self._next_examples = (examples // self._every_examples + 1) * self._every_examples
        if self._every_epochs:
            self._next_epochs = (epochs // self._every_epochs + 1) * self._every_epochs
