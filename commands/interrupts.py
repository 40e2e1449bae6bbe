"""Ctrl-C before a command has begun, and so before there is anything to end.

Imports little, since its own import can be interrupted, too.
"""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130
"""`errors.ExitCode.INTERRUPTED`, which would have to be imported."""


def end_at_interrupt() -> None:
    """End this process at an interrupt, with one line and exit code 130.

    Python's traceback of an import would say nothing. Does nothing if a program that imports this has a
    handler of its own, or imports it on another thread.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        try:
            signal.signal(signal.SIGINT, _end)
        except ValueError:
            # Only the main thread may.
            return


def raise_at_interrupt() -> None:
    """Raise KeyboardInterrupt again, as Python does."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: object) -> None:
    del number, frame
    try:
        # Not by sys.stderr, which may be in the midst of something.
        os.write(2, b"shadowsync: interrupted\n")
    finally:
        os._exit(INTERRUPTED)
