"""The sync nodes of a hub, as threads of its process."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import TYPE_CHECKING

import numpy as np

from ...nodes.runtime.role import Role
from ...nodes.sync.role import SyncRole
from ...pipeline.config.job import Job
from ...pipeline.types import Float32Array
from ..node_thread import NodeThread
from .hosted import hosted_node

if TYPE_CHECKING:
    from .server import HubServer

END_SECONDS = 10.0


class HubSyncNodes:
    """The sync nodes of a hub; runs on the hub's loop."""

    def __init__(self, server: HubServer) -> None:
        self._server = server
        self._nodes: list[NodeThread[Role]] = []

    async def start(self) -> None:
        """Start them, as many as the hub's job has."""
        server = self._server
        for index in range(server.state.job.sync_nodes):
            self._nodes.append(hosted_node("sync", server.settings, server.bound, index))
            await asyncio.to_thread(self._nodes[-1].start)

    async def start_later(self, loops: concurrent.futures.Future[Job]) -> None:
        """Start them once somebody says what the loops synchronize."""
        self._server.take_loops(await asyncio.wrap_future(loops))
        await self.start()

    async def center(self) -> Float32Array | None:
        """Return the center, float32 [numel]; None before it has a value."""
        slices = [await asyncio.wrap_future(_slice_of(node)) for node in self._nodes]
        values = [values_of_slice for values_of_slice in slices if values_of_slice is not None]
        # With more nodes than elements, the last ones hold nothing.
        return np.concatenate(values) if values else None

    async def close(self) -> None:
        """Wait for the nodes, which have been told to end."""
        await asyncio.gather(*(asyncio.to_thread(node.join, END_SECONDS) for node in self._nodes))


def _slice_of(node: NodeThread[Role]) -> concurrent.futures.Future[Float32Array | None]:
    role = node.role
    assert isinstance(role, SyncRole)
    return node.submit(role.slice_values)
