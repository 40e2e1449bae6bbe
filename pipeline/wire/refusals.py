"""Rate-limited logging of refused messages."""

from __future__ import annotations

import logging
from typing import Any, Final

LOGGED_REFUSALS: Final = 32


class Refusals:
    """The messages that one socket or session has refused.

    The first LOGGED_REFUSALS are logged, after that only number 64, 128, 256 and so on. Belongs to the thread
    of its socket; any thread may read `count`.

    Attributes:
        count: how many there were so far.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self.count = 0

    def add(self, text: str, *values: Any) -> None:
        """Count a refusal and log it, within the limit."""
        self.count += 1
        if self.count <= LOGGED_REFUSALS:
            self._log.error(text, *values)
        elif self.count & (self.count - 1) == 0:
            self._log.error(f"{text} (%d refused so far; most are not logged)", *values, self.count)
