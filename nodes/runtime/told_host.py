"""Which host a node tells the others (`advertise`), with "auto" resolved."""

from __future__ import annotations

import asyncio
import time

from ...pipeline.errors import ClusterError
from ...pipeline.wire.own_address import AUTO, own_address
from .settings import NodeSettings

RETRY_SECONDS = 0.5


async def told_host(settings: NodeSettings) -> str:
    """`settings.advertise`; for "auto" this host's address towards the coordinator.

    A container may start before the name of its coordinator is known, so that is asked again for
    `run.start_timeout_seconds`. Call it on the node's loop.

    Raises:
        ClusterError: the coordinator's host is not known after that.
    """
    if settings.advertise != AUTO:
        return settings.advertise
    deadline = time.monotonic() + settings.job.run.start_timeout_seconds
    while True:
        try:
            return await asyncio.to_thread(own_address, settings.join)
        except ClusterError as error:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{error.what}, still not after {settings.job.run.start_timeout_seconds:g} s",
                    where=settings.join,
                    remedy="start the coordinator first and give the address that it prints",
                ) from error
        await asyncio.sleep(RETRY_SECONDS)
