"""A running job as its clients see it: its address, its statuses, its end."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ...pipeline.errors import ClusterError, JobFileError
from ...pipeline.report.run_folders.run_folder import ADDRESS_FILE
from ...pipeline.text.format import duration
from ...pipeline.wire.control.base import Done, Reply, Request
from ...pipeline.wire.control.messages import GetStatus
from ...pipeline.wire.control.orders import JobEnded
from ...pipeline.wire.rpc.channel import ConnectionLost, RemoteError, RpcChannel
from ...pipeline.wire.rpc.client import open_channel, refuse_requests
from ...pipeline.wire.tasks import race
from ...watch.mirror import Mirror
from ...watch.status import Status, read_status
from ...watch.terminal.live import Display, Lines, LiveTable
from ...watch.terminal.table import table_of

PERIOD_SECONDS = 1.0
FIRST_REPLY_SECONDS = 5.0
REPLY_SECONDS = 4.0


def address_of(run_folder: Path | None, join: str | None) -> str:
    """Find the coordinator's address.

    Raises JobFileError unless exactly one of `run_folder` and `join` is given, ClusterError for a folder
    without an address.
    """
    if (run_folder is None) == (join is None):
        raise JobFileError(
            "a run folder or --join is needed, not both", remedy="give one, such as runs/latest"
        )
    if run_folder is None:
        assert join is not None
        return join
    note = run_folder / ADDRESS_FILE
    try:
        return str(json.loads(note.read_text(encoding="utf-8"))["endpoint"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            "is not the folder of a run that has begun", where=str(run_folder), remedy="give runs/NAME"
        ) from error


class WatchedJob:
    """The watched job: its statuses, and whether it reported its end."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._replied_at = time.monotonic()
        self.mirror = Mirror()
        self.ended = asyncio.Event()
        self.outcome = ""

    async def handle(self, request: Request[Any], number: int) -> Reply:
        """Handle a request of the coordinator: only `JobEnded` is known."""
        if not isinstance(request, JobEnded):
            return await refuse_requests(request, number)
        self.outcome = request.outcome
        self.ended.set()
        return Done()

    async def first_status(self, channel: RpcChannel, *, notify_end: bool) -> Status:
        """Request the first status. Raises ClusterError if nothing answers."""
        try:
            return await self._request_status(channel, FIRST_REPLY_SECONDS, notify_end=notify_end)
        except ConnectionLost as error:
            raise ClusterError(
                f"no coordinator answered within {duration(FIRST_REPLY_SECONDS)}",
                where=self._address,
                remedy="give the address or the folder of a job that is running, and its --key if it has one",
            ) from error

    async def next_status(self, channel: RpcChannel) -> Status | None:
        """Request the next status; None if the job has reported its end.

        Prints a line when there is no answer. Raises ClusterError if there is none for the job's
        `node_timeout_seconds`.
        """
        while True:
            try:
                status = await race(
                    self._request_status(channel, REPLY_SECONDS, notify_end=True), self.ended.wait()
                )
            except Exception as error:
                if self.ended.is_set():
                    return None
                if not isinstance(error, ConnectionLost):
                    raise
                self._report_silence()
            else:
                return None if self.ended.is_set() else status

    async def follow(self, channel: RpcChannel) -> None:
        """Return when the job has reported its end; raises ClusterError as `next_status` does."""
        while await self.next_status(channel) is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), PERIOD_SECONDS)

    def _report_silence(self) -> None:
        latest = self.mirror.latest
        assert latest is not None
        silent = time.monotonic() - self._replied_at
        text = f"no answer for {duration(round(silent))}; {latest.run} was {latest.phase}"
        if silent < latest.node_timeout_seconds:
            click.echo(text, err=True)
            return
        raise ClusterError(
            text, where=self._address, remedy="check that its coordinator runs and can be reached"
        )

    async def _request_status(self, channel: RpcChannel, seconds: float, *, notify_end: bool) -> Status:
        curves, incidents = self.mirror.cursors()
        request = GetStatus(dict(curves), incidents, notify_end)
        try:
            reply = await channel.call(request, timeout_seconds=seconds)
        except RemoteError as error:
            raise ClusterError(error.what, where=self._address, remedy=error.remedy) from error
        self._replied_at = time.monotonic()
        self.mirror.take(read_status(reply.status))
        # The reply has only the new incidents; the display needs all.
        whole = self.mirror.whole()
        assert whole is not None
        return whole


async def show_job(address: str, *, once: bool, as_json: bool) -> None:
    """Show the job at `address` until it reports its end.

    Raises ClusterError if nothing answers at first, or later for the job's `node_timeout_seconds`.
    """
    watched = WatchedJob(address)
    shown: Display | None = None
    async with open_channel(address, watched.handle) as channel:
        try:
            status: Status | None = await watched.first_status(channel, notify_end=not once)
            while status is not None:
                if as_json:
                    click.echo(status.model_dump_json())
                elif once:
                    Console().print(table_of(status))
                else:
                    shown = shown or _display()
                    shown(status.model_dump())
                if once:
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(watched.ended.wait(), PERIOD_SECONDS)
                status = await watched.next_status(channel)
        finally:
            if shown is not None:
                shown.close()
    if not as_json and watched.mirror.latest is not None:
        click.echo(f"{watched.mirror.latest.run} has ended: {watched.outcome}", err=True)


def _display() -> Display:
    console = Console()
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveTable(console)
    return Lines(sys.stdout)
