"""Rate-limited logging of events that peers can cause."""

from __future__ import annotations

import logging
from typing import Any, Final

LOGGED_REFUSALS: Final = 32
UNSENT: Final = "a %s to %r could not be queued; what needs a reply is sent again"


class CountedLog:
    """A count of events that logs the first ones, then ever fewer.

    The first LOGGED_REFUSALS events are logged, then only number 64, 128, 256 and so on. Only one thread may
    call `add`; any thread may read `count`.

    Attributes:
        count: number of events so far.
    """

    def __init__(self, log: logging.Logger, level: int = logging.WARNING) -> None:
        self._log = log
        self._level = level
        self.count = 0

    def add(self, text: str, *values: Any) -> None:
        """Count one event, and log it within the limit."""
        self.count += 1
        if self.count <= LOGGED_REFUSALS:
            self._log.log(self._level, text, *values)
        elif self.count & (self.count - 1) == 0:
            self._log.log(self._level, f"{text} (%d so far; most are not logged)", *values, self.count)


class Refusals(CountedLog):
    """A count of messages refused by one socket or session; for the socket's thread."""

    def __init__(self, log: logging.Logger) -> None:
        super().__init__(log, logging.ERROR)
