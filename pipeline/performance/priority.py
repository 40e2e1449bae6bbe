"""A lower priority for work beside training: evaluations and exports.

For whole processes, and for threads of processes in which nobody trains. A thread that shares an interpreter
with workers keeps its priority and rests (`pipeline/checkpoint/store/yielding.py`): the kernel could take the
processor from one of lower priority while it holds the interpreter's lock, and the workers would wait.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

BACKGROUND_NICE: Final = 10
"""A tenth of the weight of threads that train: one that computes gets a tenth of a busy core, but never
nothing."""

_LOWEST: Final = 19
_SESSION: Final = Path("/proc/self/autogroup")

T = TypeVar("T")
log = logging.getLogger(__name__)


def at_priority(nice: int, work: Generator[None, None, T], urgent: threading.Event | None = None) -> T:
    """Run `work` on a thread whose priority is lower by `nice`; return its result.

    With 0 this thread runs it. Once `urgent` is set, this thread runs what is left after the next `yield` of
    the work: only root can raise a thread's priority again, so the other thread ends. Raises what `work`
    raises. Where threads have no priority of their own, which is so everywhere but on Linux, this thread runs
    it, which is logged once.
    """
    _set_session(nice)
    try:
        if nice and _has_thread_priorities():
            with ThreadPoolExecutor(1, "background", _lower_thread, (nice,)) as pool:
                while urgent is None or not urgent.is_set():
                    pool.submit(next, work).result()
            _set_session(0)
        while True:
            next(work)
    except StopIteration as end:
        result: T = end.value
        return result


def lower_process() -> None:
    """Lower the priority of this process for good.

    Call it on the main thread before there are others: on Linux only threads that start later have it, too.
    """
    os.nice(BACKGROUND_NICE)
    _set_session(BACKGROUND_NICE)


def thread_nice() -> int:
    """Return how much lower than usual the priority of the calling thread is."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def _lower_thread(nice: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(thread_nice() + nice, _LOWEST))
    except OSError as error:
        # The work matters more; a container may forbid it.
        log.warning("work beside training has its priority: it cannot be lowered (%s)", error.strerror)


@functools.cache
def _has_thread_priorities() -> bool:
    if sys.platform == "linux":
        return True
    log.info("work beside training has its priority: threads have none of their own on this system")
    return False


def _set_session(nice: int) -> None:
    """Set the priority of this process's session, if it leads one of its own.

    Linux may group processes by session (sched_autogroup): then `nice` counts within a session only, and
    sessions share the processors by this value. Unlike `nice` it can be put back.
    """
    if hasattr(os, "getsid") and os.getsid(0) == os.getpid():
        # Without this grouping there is no such file.
        with contextlib.suppress(OSError):
            _SESSION.write_text(str(nice), encoding="ascii")
