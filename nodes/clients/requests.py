"""Clients of a running job: they change the number of its nodes, and end an input that it follows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import click

from ...pipeline.errors import ClusterError, JobFileError
from ...pipeline.text.format import counted
from ...pipeline.wire.control.messages import EndInput, Scale
from ...pipeline.wire.rpc.channel import ConnectionLost, RemoteError
from ...pipeline.wire.rpc.client import open_channel
from ...pipeline.wire.tasks import race
from .watched_job import WatchedJob

SCALE_SECONDS = 600.0


def parse_counts(counts: Sequence[str]) -> dict[str, int]:
    """Read counts such as `trainer=4`; raises JobFileError for any other text."""
    count_of_role: dict[str, int] = {}
    for text in counts:
        role, _, number = text.partition("=")
        if not number.isascii() or not number.isdigit() or role in count_of_role:
            raise JobFileError(f"{text!r} given; a role and a number are needed", remedy="write trainer=4")
        count_of_role[role] = int(number)
    if not count_of_role:
        raise JobFileError("no number of nodes given", remedy="write trainer=4 after the run folder")
    return count_of_role


async def scale_job(address: str, counts: Mapping[str, int]) -> None:
    """Scale the job at `address` role by role, and print the changes.

    Raises ClusterError if nothing answers, or the job refuses.
    """
    watched = WatchedJob(address)
    async with open_channel(address, watched.handle) as channel:
        await watched.first_status(channel, notify_end=True)
        ending = asyncio.create_task(watched.follow(channel))
        try:
            for role, count in counts.items():
                call = channel.call(Scale(role, count), timeout_seconds=SCALE_SECONDS)
                if (reply := await race(call, ending)) is None:
                    ending.result()
                    raise ClusterError("the job has ended meanwhile", where=address)
                changes = [f"{name} joined" for name in reply.joined] + [
                    f"{name} left" for name in reply.left
                ]
                done = ", ".join(changes) or "nothing to do"
                click.echo(f"{done}; the job has {counted(reply.count, role)}")
        except RemoteError as error:
            raise ClusterError(error.what, where=address, remedy=error.remedy) from error
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)


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
