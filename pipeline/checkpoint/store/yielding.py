"""Writing that yields to training: it rests while processors are scarce.

The thread that writes keeps its priority. It shares the interpreter's lock with threads that train or serve
rows; the kernel could stop one of lower priority while it holds the lock, and all of them would wait.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

SHARE: Final = 0.05
"""The share of one core that writing takes while processors are scarce."""

MOST_REST_SECONDS: Final = 30.0
"""The longest that one part of a checkpoint rests altogether; a death meanwhile goes back further."""

_SCARCE: Final = 0.1
"""Processors are scarce if the thread waited for one for more than this part of the time that it ran."""

_LEAST_SECONDS: Final = 0.002
"""Less than this says nothing of how scarce they are."""

TIMES: Final = Path("/proc/thread-self/schedstat")
"""Where the system says for how long the calling thread ran and waited."""

T = TypeVar("T")
log = logging.getLogger(__name__)


class ThreadTimes(NamedTuple):
    """Seconds for which a thread ran, and for which it waited for a processor."""

    thread: int
    ran: float
    waited: float


def own_times() -> ThreadTimes | None:
    """Return the times of the calling thread; None if nobody counts them.

    Source: Documentation/scheduler/sched-stats.rst of Linux, /proc/<pid>/schedstat.
    """
    try:
        ran, waited, _ = TIMES.read_text(encoding="ascii").split()
        return ThreadTimes(threading.get_native_id(), int(ran) / 1e9, int(waited) / 1e9)
    except (OSError, ValueError):
        _say_uncounted()
        return None


@functools.cache
def _say_uncounted() -> None:
    log.info("checkpoints do not yield to training: the system counts no waiting threads (%s)", TIMES)


class Yielding:
    """Pieces of work with rests between them, for one part of a checkpoint.

    One thread at a time may use it. After each piece, the kernel says for how long the thread ran and how
    long it waited for a processor. If it waited for much, somebody else's thread did, too: it rests until it
    has had SHARE of the time. So it takes what training leaves, and of what training needs no more than that.

    Args:
        times: returns the times of the calling thread, or None.
        rest: sleeps for so many seconds.
    """

    def __init__(
        self,
        times: Callable[[], ThreadTimes | None] = own_times,
        rest: Callable[[float], object] = time.sleep,
    ) -> None:
        self._times, self._rest = times, rest
        self._since: ThreadTimes | None = None
        self._left = MOST_REST_SECONDS

    def between(self, pieces: Iterable[T]) -> Iterator[T]:
        """Yield the pieces; rest between them while processors are scarce."""
        self._since = self._times()
        for piece in pieces:
            yield piece
            self._rest_if_scarce()

    def _rest_if_scarce(self) -> None:
        now, since = self._times(), self._since
        if now is None or since is None or now.thread != since.thread:
            # An upload may ask for the pieces from several threads.
            self._since = now
            return
        ran, waited = now.ran - since.ran, now.waited - since.waited
        if ran < _LEAST_SECONDS:
            return
        seconds = min(ran / SHARE - ran, self._left) if waited > _SCARCE * ran else 0.0
        if seconds > 0.0:
            self._left -= seconds
            self._rest(seconds)
        self._since = now
