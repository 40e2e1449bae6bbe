"""A trainer that trains slowly while a file is there: its role, FILE, AT, SECONDS, and its other arguments.

As `node_faults.Slowed`, for a process: from its batch AT on each takes so many seconds more.
"""

from __future__ import annotations

import itertools
import sys
import threading
from pathlib import Path

from shadowsync import cli
from shadowsync.nodes.worker.batches import InFlightBatch
from shadowsync.nodes.worker.worker import Worker


def slow_down(file: Path, at: int, seconds: float) -> None:
    """Have each worker of this process wait before a batch, as long as there is the file."""
    compute, trained = Worker._compute, itertools.count(1)

    def slow(self: Worker, batch: InFlightBatch) -> None:
        if batch.training and next(trained) >= at and file.exists():
            threading.Event().wait(seconds)
        compute(self, batch)

    Worker._compute = slow  # type: ignore[method-assign]


if __name__ == "__main__":
    slow_down(Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    del sys.argv[2:5]
    cli.main()
