"""A node's use of its process; several nodes can share one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import zmq

from .process import exit_when_parent_dies, log_to_folder

PULSE_SECONDS = 0.5


class ProcessHooks:
    """The hooks of a node that has a process of its own.

    A subclass shares one between nodes.

    All methods but `zmq_context` are called on the node's loop.

    Attributes:
        pulse_seconds: from one heartbeat to the next.
    """

    pulse_seconds = PULSE_SECONDS

    def zmq_context(self) -> zmq.Context[zmq.Socket[bytes]]:
        """Give the context of all of the node's sockets.

        The node terminates it at its end.
        """
        return zmq.Context(io_threads=1)

    def on_interrupt(
        self,
        loop: asyncio.AbstractEventLoop,
        interrupted: Callable[[], None],
        terminated: Callable[[], None] | None = None,
    ) -> None:
        """Call `interrupted` on the loop whenever the node is interrupted.

        With `terminated` that is called for SIGTERM, which is meant for this node alone.
        """
        loop.add_signal_handler(signal.SIGINT, interrupted)
        loop.add_signal_handler(signal.SIGTERM, terminated or interrupted)

    def on_orphaned(self, loop: asyncio.AbstractEventLoop, orphaned: Callable[[], None]) -> None:
        """Call `orphaned` on the loop when the supervisor dies; only of a supervised node."""
        exit_when_parent_dies(loop, orphaned)

    def log_to(self, folder: str | Path, name: str) -> None:
        """Log what the node does to FOLDER/logs/NAME.jsonl from now on."""
        log_to_folder(folder, name)
