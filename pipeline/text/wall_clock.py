"""The wall clock: it dates what people read, and times nothing.

Nothing else of the package reads it. Timeouts, rates and waits use the monotonic clock or that of an event
loop, so a wall clock that is wrong or jumps changes dates alone. One thing is timed by it: how long a job was
without a coordinator, if the next one runs on another machine.

A seam for fault injection: if `SHADOWSYNC_CLOCK_FAULTS` names a folder, the clock of a process is shifted by
the seconds in the folder's file that is named by the process id. Only `shadowsync chaos` sets it.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

CLOCK_FAULTS_VARIABLE: Final = "SHADOWSYNC_CLOCK_FAULTS"


def unix_seconds() -> float:
    """Return the seconds since 1970."""
    return time.time() + offset_seconds()


def now() -> datetime:
    """Return the time, in UTC."""
    return datetime.fromtimestamp(unix_seconds(), UTC)


def timestamp() -> str:
    """Return the time in UTC as ISO 8601, to the second."""
    return now().isoformat(timespec="seconds")


def offset_seconds() -> float:
    """Return by how much a fault shifts this process's clock; 0 without a fault."""
    folder = os.environ.get(CLOCK_FAULTS_VARIABLE)
    if not folder:
        return 0.0
    try:
        return float(clock_fault_file(Path(folder), os.getpid()).read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0.0


def clock_fault_file(folder: Path, process_id: int) -> Path:
    """Return the file that shifts a process's clock while it exists."""
    return folder / str(process_id)
