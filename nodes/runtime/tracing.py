"""Timing of this process's threads: activities, traces, and delays."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Final

MOST_MARKS: Final = 50_000
SHORTEST_SECONDS: Final = 5e-6

Mark = tuple[str, float, float, int]


class Tracer:
    """The latest marks of this process.

    Any thread may call; off, it costs a test of `on`.

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
        seconds: elapsed seconds so far; any thread may read it.
        cpu_seconds: the thread's CPU seconds so far, if `cpu` was requested.

    Args:
        name: its name in a trace.
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


PERIOD_SECONDS: Final = 0.08
STALL_SECONDS: Final = 0.03
# A thread that waits for the interpreter lock wakes every 5 ms to request it; a stopped thread does not wake.
LOCK_REQUEST_SECONDS: Final = 0.1
# Long for a wake-up, short beside the 5 ms for which a thread that runs Python code keeps the lock.
LOCK_SECONDS: Final = 0.0005

OWN_SCHEDULE: Final = "/proc/thread-self/schedstat"
ENOUGH_BYTES: Final = 128
# How often `figures` checks whether a wake-up that is due was noted. A count, not a time: while the process
# is stopped, time passes without checks.
NOTED_LOOKS: Final = 400


class Sampler:
    """Sampler of wake-ups during a profile; one thread calls all methods.

    The lateness of a wake-up, minus the kernel's figure for waits for a core, is the time that the thread
    waited for the interpreter lock, a probe of its contention. If it is more than STALL_SECONDS and the
    thread did not ask for the lock meanwhile, it is the time that the process was stopped. If the kernel does
    not report waits for a core, these count, too.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._due = math.inf
        self._wakes = 0
        self._locked_wakes = 0
        self._stalled_seconds = 0.0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and join it."""
        self._stop.set()
        self._thread.join()

    def figures(self) -> dict[str, Any]:
        """Count wake-ups, those that waited for the interpreter lock, and stopped seconds.

        Waits for a wake-up that is due: the request to a process that was stopped and continued may
        precede it.
        """
        for _ in range(NOTED_LOOKS):
            if self._due >= time.monotonic():
                break
            time.sleep(LOCK_SECONDS)
        return {
            "wakes": self._wakes,
            "locked_wakes": self._locked_wakes,
            "stalled_seconds": self._stalled_seconds,
        }

    def _run(self) -> None:
        schedule = _opened(OWN_SCHEDULE)
        try:
            while not self._stop.is_set():
                (waited, slices), due = _core_waits(schedule), time.monotonic() + PERIOD_SECONDS
                self._due = due
                time.sleep(PERIOD_SECONDS)
                late = time.monotonic() - due
                waited_then, slices_then = _core_waits(schedule)
                self._note(late - (waited_then - waited), slices_then - slices)
                self._due = math.inf
        finally:
            self._due = math.inf
            if schedule is not None:
                os.close(schedule)

    def _note(self, late: float, slices: int) -> None:
        """Record a wake-up that was `late` seconds late, in `slices` turns on a core."""
        self._wakes += 1
        if late > STALL_SECONDS and slices <= 2 + late / LOCK_REQUEST_SECONDS:
            # It stopped some time before the wake-up was due, on average half a period.
            self._stalled_seconds += late + PERIOD_SECONDS / 2
        elif late > LOCK_SECONDS:
            self._locked_wakes += 1


def thread_figures() -> dict[str, tuple[float, float]]:
    """Return each Python thread's CPU seconds, and those waiting for cores.

    Threads of one name are summed. Empty if the system does not report them.
    """
    figures: dict[str, tuple[float, float]] = {}
    for thread in threading.enumerate():
        path = Path(f"/proc/self/task/{thread.native_id}/schedstat")
        if (ran := _schedule(path)) is not None:
            cpu, waited = figures.get(thread.name, (0.0, 0.0))
            figures[thread.name] = (cpu + ran[0], waited + ran[1])
    return figures


def _opened(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return None


def _core_waits(schedule: int | None) -> tuple[float, int]:
    """Seconds that this thread waited for a core, and its turns on one.

    0 if unknown.
    """
    if schedule is None:
        return 0.0, 0
    # Read anew from the start, the file has the figures of that moment.
    _, waited, slices = os.pread(schedule, ENOUGH_BYTES, 0).split()
    return int(waited) / 1e9, int(slices)


def _schedule(path: Path) -> tuple[float, float] | None:
    """Seconds on a core and waiting for one; None if unknown or ended."""
    try:
        ran, waited, _ = path.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return int(ran) / 1e9, int(waited) / 1e9
