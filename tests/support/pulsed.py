"""A node that is stopped and let go again and again, from outside, as a machine that does other things."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from .processes import wait_until


def node_of(parent: int, role: str) -> int:
    """The process of a role among the offspring of a `shadowsync run` or `profile`."""
    found: list[int] = []

    def started() -> bool:
        for child in psutil.Process(parent).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.cmdline()[1:4] == ["-m", "shadowsync.cli", role]:
                    found.append(child.pid)
        return bool(found)

    wait_until(started, f"{role} is started")
    return found[0]


@contextmanager
def pulsed(pid: int, *, stopped_seconds: float, running_seconds: float) -> Iterator[None]:
    """Stops the process for so long, then lets it run for so long, until the end or its end."""
    over = threading.Event()

    def pulse() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                over.wait(stopped_seconds)
                os.kill(pid, signal.SIGCONT)
                over.wait(running_seconds)

    thread = threading.Thread(target=pulse, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60.0)
