"""The interface between a job's policy and the engine that starts its nodes.

The supervisor decides what to start, and what a death means. A launcher starts a node somewhere and watches
it: `LocalLauncher` on this machine, another one on the machines of a cluster.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...pipeline.config.job import Job
from ...pipeline.errors import ExitCode
from ..runtime.process import CLI
from .child import Child
from .starter import Starter

NodeKey = tuple[str, int]
"""A node's role, and its index among those of the role."""

COORDINATOR = "coordinator"
_WITHOUT_TORCH = (COORDINATOR, "reader")


@dataclass(frozen=True)
class NodeStart:
    """A node to start.

    Attributes:
        role: its command.
        index: number among the nodes of its role that this supervisor started; a replacement has that of the
            node before it.
        token: unique name of this process.
        job_file: the job.
        addresses: `--bind` and `--advertise` on this machine.
        options: its other options.
    """

    role: str
    index: int
    token: str
    job_file: Path
    addresses: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def needs_torch(self) -> bool:
        return self.role not in _WITHOUT_TORCH

    def arguments(self) -> list[str]:
        command = ["-m", CLI, self.role, str(self.job_file), "--supervised", "--token", self.token]
        return [*command, *self.addresses, *self.options]


class RunningNode(Protocol):
    """A started node; used on the supervisor's loop only.

    Attributes:
        role, index, token: those of its `NodeStart`.
        ended: set once it has ended and its output is read.
        code: its exit code, or minus the number of the signal that killed it; None while it runs.
    """

    role: str
    index: int
    token: str
    ended: asyncio.Event
    code: int | None

    @property
    def exit_code(self) -> ExitCode:
        """Its exit code, as one of this package's."""
        ...

    @property
    def how(self) -> str:
        """How it ended, for people."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal, if it is still there."""
        ...

    def last_line(self) -> str:
        """Return the last line of its output, without the program's name in front."""
        ...

    async def close(self) -> None:
        """Let go of it; a node that still runs ends soon by itself."""
        ...


class Launcher(Protocol):
    """Start a job's nodes and watch them; used on the supervisor's loop only.

    Attributes:
        trainers_here: whether trainers run on this machine, so that it must have their device.
    """

    trainers_here: bool

    async def open(self, job: Job) -> None:
        """Prepare for the job's nodes, before the coordinator starts.

        Raises ClusterError if they cannot be started.
        """
        ...

    async def start(self, node: NodeStart) -> RunningNode:
        """Start a node; raises ClusterError or OSError if that fails."""
        ...

    async def close(self) -> None:
        """Release what `open` took; all nodes have been closed."""
        ...


class LocalLauncher:
    """A launcher of processes of this machine, children of this one."""

    trainers_here = True

    def __init__(self, starter: Starter) -> None:
        self._starter = starter

    async def open(self, job: Job) -> None:
        """Do nothing: a machine takes any job; see `Launcher`."""

    async def start(self, node: NodeStart) -> Child:
        """Start a process; see `Launcher`."""
        process = await self._starter.start(node.arguments(), torch=node.needs_torch)
        return Child(node.role, node.index, node.token, process)

    async def close(self) -> None:
        """Do nothing: the starter is its owner's."""


async def end_all(nodes: Iterable[RunningNode]) -> None:
    """Kill nodes that still live one second after they were asked to end."""
    nodes = list(nodes)
    for number, timeout_seconds in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 5.0)):
        living = [node for node in nodes if not node.ended.is_set()]
        for node in living:
            node.signal(signal.SIGCONT)
            node.signal(number)
        if living:
            waits = [asyncio.ensure_future(node.ended.wait()) for node in living]
            await asyncio.wait(waits, timeout=timeout_seconds)
            for wait in waits:
                wait.cancel()
    for node in nodes:
        await node.close()
