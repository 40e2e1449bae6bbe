"""The actor that runs a node's process on a machine of the cluster.

The process is the actor's child and has a pipe to it, so that it ends when the actor does. Ray ends the actor
with the driver.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
from pathlib import Path
from typing import TypedDict

import ray

from ... import __version__
from ...nodes.supervisor.child import Child
from ...nodes.supervisor.launcher import LocalLauncher, NodeStart
from ...nodes.supervisor.starter import SpawnStarter
from .held_secret import take_key


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
    """Run one node; all methods are coroutines of Ray's loop in the actor's process.

    Arguments and results are texts and numbers, which need no module of ours to be read.

    Args:
        key: the content of the job's key file; empty for a job without a key.
    """

    def __init__(self, key: str) -> None:
        take_key(key)
        self._launcher = LocalLauncher(SpawnStarter())
        self._folder = tempfile.TemporaryDirectory(prefix="shadowsync-")
        self._child: Child | None = None
        self._started = asyncio.Event()

    async def look(self, probe: str) -> Surroundings:
        """Report where this is.

        `probe` is a file in the driver's folder of run folders.
        """
        return Surroundings(
            host=socket.gethostname(),
            address=ray.util.get_node_ip_address(),
            version=__version__,
            sees_folder=await asyncio.to_thread(Path(probe).is_file),
        )

    async def start(self, role: str, index: int, token: str, job: str, options: list[str]) -> int:
        """Start a node at this machine's address; return its process number.

        `job` is the job in JSON.
        """
        address = str(ray.util.get_node_ip_address())
        job_file = Path(self._folder.name, "job.json")
        await asyncio.to_thread(job_file.write_text, job, encoding="utf-8")
        addresses = ("--bind", address, "--advertise", address)
        node = NodeStart(role, index, token, job_file, addresses, tuple(options))
        self._child = await self._launcher.start(node)
        self._started.set()
        return self._child.pid

    async def wait(self) -> tuple[int, list[str]]:
        """Wait for the node's end.

        Return the exit code, or minus the signal, and its last lines.
        """
        await self._started.wait()
        assert self._child is not None
        await self._child.ended.wait()
        assert self._child.code is not None
        return self._child.code, list(self._child.lines)

    async def signal(self, number: int) -> None:
        """Send the node a signal, if it is still there."""
        if self._child is not None:
            self._child.signal(number)
