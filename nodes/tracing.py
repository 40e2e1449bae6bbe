"""What the threads of this process did and when: seconds by activity, and each single one while traced."""

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
    """The last marks of this process; it costs a test of `on` while it is off. Any thread may call.

    Attributes:
        on: whether marks are kept.
    """

    def __init__(self, most: int = MOST_MARKS) -> None:
        self.on = False
        self._marks: deque[Mark] = deque(maxlen=most)
        self._names: dict[int, str] = {}

    def start(self) -> None:
        """Forgets what was and keeps marks from now on."""
        self._marks.clear()
        self._names = {}
        self.on = True

    def note(self, name: str, began: float, seconds: float) -> None:
        """This thread did `name` from `began` (of `time.monotonic`) on. Call it only while `on`."""
        if seconds >= SHORTEST_SECONDS:
            thread = threading.get_ident()
            if thread not in self._names:
                self._names[thread] = threading.current_thread().name
            self._marks.append((name, began, seconds, thread))

    def stop(self) -> dict[str, Any]:
        """Keeps no more, and gives what there is, for a message: `names`, `threads` (names of), and `marks`:
        of each its name and thread as indexes, its begin on `time.monotonic` and its length in microseconds.
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
    """Something that one thread does again and again: `with activity:` around it. Never in itself.

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
