"""Client of a running job: ends the input of a job that follows it."""

from __future__ import annotations

from ...pipeline.errors import ClusterError
from ...pipeline.wire.control.messages import EndInput
from ...pipeline.wire.rpc.channel import ConnectionLost, RemoteError
from ...pipeline.wire.rpc.client import open_channel
from .watched_job import WatchedJob

STOP_SECONDS = 30.0


async def end_input(address: str) -> None:
    """Have the job at `address` look for no more files.

    Raises ClusterError if nothing answers, or the job refuses.
    """
    watched = WatchedJob(address)
    async with open_channel(address, watched.handle) as channel:
        await watched.first_status(channel, notify_end=False)
        try:
            await channel.call(EndInput(), timeout_seconds=STOP_SECONDS)
        except ConnectionLost as error:
            raise ClusterError(error.what, where=address, remedy="check that the job still runs") from error
        except RemoteError as error:
            raise ClusterError(error.what, where=address, remedy=error.remedy) from error
