"""When something is due again, by examples or by seconds."""

from __future__ import annotations


class Due:
    """Due at every multiple of `every_examples`, and `every_seconds` after the last time; 0: not by that.

    No clock of its own: whoever asks says how many examples and seconds there are.
    """

    def __init__(self, every_examples: int, every_seconds: float) -> None:
        self._every_examples = every_examples
        self._every_seconds = every_seconds
        self._next_examples = 0
        self._last_seconds: float | None = None

    def now(self, examples: int, seconds: float) -> bool:
        """Whether it is due."""
        if self._last_seconds is None:
            self.done(examples, seconds)
        assert self._last_seconds is not None
        by_examples = self._every_examples > 0 and examples >= self._next_examples
        return by_examples or 0 < self._every_seconds <= seconds - self._last_seconds

    def done(self, examples: int, seconds: float) -> None:
        """It was done, or tried, with so many examples and seconds."""
        self._last_seconds = seconds
        if self._every_examples:
            self._next_examples = (examples // self._every_examples + 1) * self._every_examples
