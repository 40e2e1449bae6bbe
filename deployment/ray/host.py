"""The actor that runs a node's process on a machine of the cluster.

The process is the actor's child and has a pipe to it, so that it ends when the actor does. Ray ends the actor
with the driver. SIGTERM is the notice of a machine that is to go: a node that can leave the running job does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypedDict, TypeVar

import ray

from ... import __version__
from ...nodes.supervisor.child import Child
from ...nodes.supervisor.launcher import LocalLauncher, NodeStart
from ...nodes.supervisor.starter import SpawnStarter
from .held_file import hold, take_key

T = TypeVar("T")

# The driver waits for the node's end in one call, and sends signals in others meanwhile.
CALLS_AT_ONCE: Final = 4
# Others take the work of such a node. The rows of an embedding node and the slice of a sync node come from
# elsewhere, as after its death.
CAN_LEAVE: Final = ("reader", "trainer")
EXIT_CODE: Final = 128 + int(signal.SIGTERM)


class Surroundings(TypedDict):
    """What an actor finds around itself.

    `address` is its machine's, as other machines reach it; `sees_folder` is whether it sees the driver's run
    folders.
    """

    host: str
    address: str
    version: str
    sees_folder: bool


class NodeHost:
    """Run one node.

    Ray calls the methods in threads of its own, CALLS_AT_ONCE at a time. None of them is a coroutine: Ray
    makes an actor that has one off the main thread, where no signal can be handled. Arguments and results are
    texts and numbers, which need no module of ours to be read.

    Args:
        key: the content of the job's key file; empty for a job without a key.
    """

    def __init__(self, key: str) -> None:
        take_key(key)
        self._node = _NodeProcess()
        self._is_leaving = False
        signal.signal(signal.SIGTERM, self._on_terminated)

    def describe_machine(self, probe: str) -> Surroundings:
        """Return what the launcher must know of this machine.

        `probe` is a file in the driver's folder of run folders.
        """
        return Surroundings(
            host=socket.gethostname(),
            address=ray.util.get_node_ip_address(),
            version=__version__,
            sees_folder=Path(probe).is_file(),
        )

    def start(self, role: str, index: int, token: str, job: str, options: list[str]) -> int:
        """Start a node at this machine's address; return its process number.

        `job` is the job in JSON.
        """
        address = str(ray.util.get_node_ip_address())
        addresses = ("--bind", address, "--advertise", address)
        return self._node.start(NodeStart(role, index, token, Path(hold(job)), addresses, tuple(options)))

    def wait(self) -> tuple[int, list[str]]:
        """Wait for the node's end.

        Return the exit code, or minus the signal, and its last lines.
        """
        return self._node.wait()

    def signal(self, number: int) -> None:
        """Send the node a signal, if it is still there."""
        self._node.signal(number)

    def _on_terminated(self, number: int, frame: FrameType | None) -> None:
        """Have the node leave the job; runs on the main thread.

        The actor stays until the node has left, and the driver has learned of it. Only the first signal
        counts: a node would take a second one for an interrupt of the job.
        """
        del frame
        if self._node.role not in CAN_LEAVE:
            # The node ends with this process. Ray's own handler would wait for `wait`.
            os._exit(EXIT_CODE)
        elif not self._is_leaving:
            self._is_leaving = True
            self._node.signal(number)


class _NodeProcess:
    """The node's process, on a loop of its own. Any thread may call."""

    def __init__(self) -> None:
        self._launcher = LocalLauncher(SpawnStarter())
        self._child: Child | None = None
        self._started = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="node", daemon=True).start()

    @property
    def role(self) -> str:
        """The role of the process; "" before it is started."""
        return self._child.role if self._child is not None else ""

    def start(self, node: NodeStart) -> int:
        """Start it; return its number."""
        return self._on_loop(self._start(node))

    def wait(self) -> tuple[int, list[str]]:
        return self._on_loop(self._wait())

    def signal(self, number: int) -> None:
        """Send it a signal, if it is still there."""
        if self._child is not None:
            self._loop.call_soon_threadsafe(self._child.signal, number)

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self, node: NodeStart) -> int:
        self._child = await self._launcher.start(node)
        self._started.set()
        return self._child.pid

    async def _wait(self) -> tuple[int, list[str]]:
        await self._started.wait()
        assert self._child is not None
        await self._child.ended.wait()
        assert self._child.code is not None
        return self._child.code, list(self._child.lines)
