"""Noticing that the supervisor died: it holds the other end of every child's standard input."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable

GRACE_SECONDS = 12.0


def watch_supervisor(loop: asyncio.AbstractEventLoop, orphaned: Callable[[], None]) -> None:
    """Calls `orphaned` on the loop when standard input ends, and ends the process by force if it is still
    there GRACE_SECONDS later: nobody would be left to do so."""
    descriptor = sys.stdin.fileno()

    def readable() -> None:
        if os.read(descriptor, 4096):
            return
        loop.remove_reader(descriptor)
        timer = threading.Timer(GRACE_SECONDS, os._exit, (1,))
        timer.daemon = True
        timer.start()
        orphaned()

    loop.add_reader(descriptor, readable)
