"""Timing of the activities of this process's threads, and a trace of them."""

from __future__ import annotations

import threading
import time
from collections import deque
from types import TracebackType
from typing import Any, Final

MOST_MARKS: Final = 50_000
SHORTEST_SECONDS: Final = 5e-6

Mark = tuple[str, float, float, int]


class Tracer:
    """The latest marks of this process. Any thread may call; off, it costs a test of `on`.

    Attributes:
        on: whether marks are kept.
    """

    def __init__(self, most: int = MOST_MARKS) -> None:
        self.on = False
        self._marks: deque[Mark] = deque(maxlen=most)
        self._names: dict[int, str] = {}

    def start(self) -> None:
        """Drop all marks and keep new ones."""
        self._marks.clear()
        self._names = {}
        self.on = True

    def note(self, name: str, began: float, seconds: float) -> None:
        """Record that this thread did `name` from `began` (`time.monotonic`). Only while `on`."""
        if seconds >= SHORTEST_SECONDS:
            thread = threading.get_ident()
            if thread not in self._names:
                self._names[thread] = threading.current_thread().name
            self._marks.append((name, began, seconds, thread))

    def stop(self) -> dict[str, Any]:
        """Stop, and return the marks for a message.

        `names` and `threads` are names; each of `marks` is the indexes of its name and thread, its
        begin on `time.monotonic` and its length, both in microseconds.
        """
        self.on = False
        names: dict[str, int] = {}
        threads: dict[int, int] = {}
        marks = [
            [
                names.setdefault(name, len(names)),
                threads.setdefault(thread, len(threads)),
                round(began * 1e6),
                round(seconds * 1e6),
            ]
            for name, began, seconds, thread in tuple(self._marks)
        ]
        self._marks.clear()
        return {"names": list(names), "threads": [self._names[ident] for ident in threads], "marks": marks}


TRACER: Final = Tracer()


class Activity:
    """A repeated activity of one thread, timed by `with activity:`; not reentrant.

    Attributes:
        seconds: so far, of the clock; any thread may read it.
        cpu_seconds: so far, of the thread's CPU, where `cpu` was asked for.

    Args:
        name: what a trace calls it.
        cpu: whether to count CPU seconds too, which costs two system calls each time.
    """

    __slots__ = ("_began", "_cpu", "_cpu_began", "cpu_seconds", "name", "seconds")

    def __init__(self, name: str, *, cpu: bool = False) -> None:
        self.name = name
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self._cpu = cpu
        self._began = 0.0
        self._cpu_began = 0.0

    def __enter__(self) -> None:
        self._began = time.monotonic()
        if self._cpu:
            self._cpu_began = time.thread_time()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        seconds = time.monotonic() - self._began
        self.seconds += seconds
        if self._cpu:
            self.cpu_seconds += time.thread_time() - self._cpu_began
        if TRACER.on:
            TRACER.note(self.name, self._began, seconds)
