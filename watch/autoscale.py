"""Client of a running job that keeps changing the number of its trainers."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass

import click

from ..pipeline.errors import ClusterError, JobFileError
from ..pipeline.performance.count_law import CountLaw, CountRules
from ..pipeline.text.format import count, counted
from ..pipeline.wire.control.messages import Scale, ScaleReply
from ..pipeline.wire.rpc_channel import RemoteError, RpcChannel
from ..pipeline.wire.rpc_client import open_channel
from ..pipeline.wire.tasks import race
from .attach import PERIOD_SECONDS, WatchedJob
from .scale import SCALE_SECONDS
from .status import Status


def parse_range(text: str) -> tuple[int, int]:
    """Read MIN:MAX; raises JobFileError for any other text."""
    found = re.fullmatch(r"([0-9]{1,5}):([0-9]{1,5})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise JobFileError(
            f"--autoscale: {text!r} given; MIN:MAX trainers are needed", remedy="write --autoscale 1:8"
        )
    return int(found[1]), int(found[2])


@dataclass
class _Window:
    """A stretch of time in which the number of trainers did not change."""

    trainers: int
    since: float
    trained: int | None = None


class TrainerCounts:
    """From a job's statuses to its number of trainers, without I/O.

    A window of `window_seconds` begins `join_seconds` after the number of trainers last changed, because
    trainers that have just joined are not warm. Its rate goes to the law, which then decides.
    """

    def __init__(self, rules: CountRules) -> None:
        self._rules = rules
        self._law = CountLaw(rules)
        self._window: _Window | None = None

    @property
    def rates(self) -> dict[int, float]:
        """The examples per second of each number of trainers that was measured."""
        return self._law.rates

    def decide(self, status: Status) -> int | None:
        """Return the number of trainers to change to, or None."""
        trainers = sum(node.role == "trainer" and node.alive for node in status.nodes)
        window, now = self._window, status.seconds
        if status.phase != "training" or not trainers:
            self._window = None
            return None
        if window is None or window.trainers != trainers:
            self._window = _Window(trainers, now)
            return None
        if window.trained is None:
            if now - window.since >= self._rules.join_seconds:
                window.since, window.trained = now, status.progress.trained
            return None
        if now - window.since < self._rules.window_seconds:
            return None
        self._law.observe(trainers, (status.progress.trained - window.trained) / (now - window.since))
        window.since, window.trained = now, status.progress.trained
        wanted = self._law.wanted(trainers)
        return wanted if wanted != trainers else None


async def autoscale_job(address: str, rules: CountRules) -> None:
    """Keep a job at the number of trainers that the law chooses.

    Prints each change. Raises ClusterError if nothing answers, or the job refuses a change.
    """
    counts = TrainerCounts(rules)
    watched = WatchedJob(address)
    async with open_channel(address, watched.handle) as channel:
        status: Status | None = await watched.first_status(channel, notify_end=True)
        while status is not None:
            wanted = counts.decide(status)
            if wanted is not None and not await _change(channel, watched, address, wanted, counts):
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(watched.ended.wait(), PERIOD_SECONDS)
            status = await watched.next_status(channel)
    click.echo(f"the job has ended: {watched.outcome}" if watched.outcome else "the job has ended")


async def _change(
    channel: RpcChannel, watched: WatchedJob, address: str, wanted: int, counts: TrainerCounts
) -> bool:
    """Change the number of trainers; return whether the job still runs."""
    try:
        call = channel.call(Scale("trainer", wanted), timeout_seconds=SCALE_SECONDS)
        reply: ScaleReply | None = await race(call, watched.ended.wait())
    except RemoteError as error:
        raise ClusterError(error.what, where=address, remedy=error.remedy) from error
    if reply is None:
        return False
    measured = ", ".join(f"{count(rate)} with {number}" for number, rate in sorted(counts.rates.items()))
    click.echo(f"the job has {counted(reply.count, 'trainer')} (examples/s: {measured})")
    return True
