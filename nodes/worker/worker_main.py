"""A worker process's entry: `python -m shadowsync.nodes.worker.worker_main`, started by its trainer.

Its order is the first line of standard input, which stays open as long as the trainer lives.
"""

from __future__ import annotations

import signal
import sys

from ...pipeline.errors import ExitCode
from ..runtime.logs import log_to_folder, log_to_stderr
from .worker_order import WorkerOrder


def main() -> int:
    """The exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # A terminal's Ctrl-C reaches this process too; when it ends is for the trainer to say.
        signal.signal(number, signal.SIG_IGN)
    log_to_stderr()
    line = sys.stdin.buffer.readline()
    if not line:
        return int(ExitCode.STOPPED_BY_DEATH)
    order = WorkerOrder.from_line(line)
    log_to_folder(order.folder, f"{order.trainer}-worker-{order.index}")
    from .process_child import WorkerSide

    WorkerSide(order).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
