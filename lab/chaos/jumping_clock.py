"""A time of day that jumps, for the processes of one job."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

from ...pipeline.atomic_file import atomic_file

JUMP_SECONDS: Final = 600
LIBRARY: Final = "libfaketimeMT.so.1"
# Where Linux distributions and their packages put it.
FOLDERS: Final = ("/usr/lib", "/usr/lib64", "/usr/local/lib")


class JumpingClock:
    """The time of day of a job's processes, by libfaketime.

    Only the time of day jumps: the monotonic clock does not, as on a machine whose clock is set. Processes
    see a jump within a second.

    Args:
        file: where the shift is kept while the job runs.

    Raises FileNotFoundError if there is no libfaketime; see `faketime_library`.
    """

    def __init__(self, file: Path) -> None:
        library = faketime_library()
        if library is None:
            raise FileNotFoundError(LIBRARY)
        self._file = file
        self.shift(0)
        preloaded = [str(library), *os.environ.get("LD_PRELOAD", "").split()]
        self.environment: dict[str, str] = {
            "LD_PRELOAD": " ".join(preloaded),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Times of files are those of the disk.
            "NO_FAKE_STAT": "1",
            # A killed process would leave the library's shared memory behind; 0.9.10 does so.
            "FAKETIME_DISABLE_SHM": "1",
        }

    def shift(self, seconds: int) -> None:
        """Set how far the time of day is ahead; negative if behind."""
        with atomic_file(self._file) as file:
            file.write(f"{seconds:+d}\n".encode())


@cache
def faketime_library() -> Path | None:
    """Find libfaketime; None if it is not installed."""
    for folder in FOLDERS:
        for pattern in (f"faketime/{LIBRARY}", f"*/faketime/{LIBRARY}"):
            if found := next(iter(sorted(Path(folder).glob(pattern))), None):
                return found
    return None
