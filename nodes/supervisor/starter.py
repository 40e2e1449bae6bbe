"""How the processes of a job are started: forked from a server that has imported all, or each by itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Protocol

from ...pipeline.errors import JobFileError

METHOD_VARIABLE = "SHADOWSYNC_START_METHOD"
METHODS = ("forkserver", "spawn")
# One thread for each of the numerical libraries: a machine has several nodes.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"), "1"
)


class Started(Protocol):
    """A process in a session of its own, whose standard input is a pipe that this process holds.

    Attributes:
        pid: its number.
        output: what it writes to standard output and error.
    """

    pid: int
    output: asyncio.StreamReader

    def signal(self, number: int) -> None:
        """Sends it a signal; nothing happens if it has ended."""
        ...

    def close(self) -> None:
        """Ends its standard input and lets go of its output; may be called again."""
        ...

    async def wait(self) -> int:
        """Waits for its end; gives the exit code, or minus the number of the signal that killed it."""
        ...


class Starter(Protocol):
    """Starts processes. One asyncio loop calls; `close` may also be called where there was none."""

    async def start(self, arguments: Sequence[str], *, torch: bool) -> Started:
        """Starts `python ARGUMENTS`; `torch`: whether it will import torch. Raises ClusterError."""
        ...

    def close(self) -> None:
        """Ends what the starter itself has started; its processes have ended, or end by themselves."""
        ...


class _Spawned:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        self._process = process
        self.pid = process.pid
        self.output = process.stdout

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def wait(self) -> int:
        return await self._process.wait()


class SpawnStarter:
    """Every process is an interpreter of its own."""

    async def start(self, arguments: Sequence[str], *, torch: bool) -> Started:  # noqa: ARG002
        """See `Starter`."""
        return _Spawned(
            await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | ONE_THREAD,
            )
        )

    def close(self) -> None:
        """See `Starter`; there is nothing."""


def start_method() -> str:
    """The method that SHADOWSYNC_START_METHOD names; else "forkserver" where the system can, else "spawn"."""
    # Forking after imports is safe on Linux alone, and so are descriptors of processes there.
    able = sys.platform == "linux" and hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")
    given = os.environ.get(METHOD_VARIABLE) or ("forkserver" if able else "spawn")
    if given not in METHODS or (given == "forkserver" and not able):
        raise JobFileError(
            f"{given!r} given; here it can be {' or '.join(METHODS if able else METHODS[1:])}",
            where=METHOD_VARIABLE,
            remedy="leave it unset",
        )
    return given


def make_starter() -> Starter:
    """The starter of this machine. Call it early: a fork server begins to import at once."""
    if start_method() == "spawn":
        return SpawnStarter()
    from .fork_client import ForkStarter

    return ForkStarter()
