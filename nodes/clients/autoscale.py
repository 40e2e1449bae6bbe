"""Client of a running job that keeps changing the number of its trainers."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ...pipeline.config.job import Job
from ...pipeline.errors import ClusterError, JobFileError
from ...pipeline.text.format import count, counted, parse_rate, percent
from ...pipeline.wire.control.messages import Scale, ScaleReply
from ...pipeline.wire.rpc.channel import RemoteError, RpcChannel
from ...pipeline.wire.rpc.client import open_channel
from ...pipeline.wire.tasks import race
from ...watch.status import Status
from .count_law import WORTH_OF_A_TARGET, CountLaw, CountRules
from .scale import SCALE_SECONDS
from .watched_job import PERIOD_SECONDS, WatchedJob

LONGEST_PAUSE: Final = 16
RETRY_SECONDS: Final = 5.0

log = logging.getLogger(__name__)


def rules_of(text: str, target: str | None) -> CountRules:
    """Read MIN:MAX and a target such as 100k/s; raises JobFileError for any other text."""
    match = re.fullmatch(r"([0-9]{1,5}):([0-9]{1,5})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise JobFileError(
            f"--autoscale: {text!r} given; MIN:MAX trainers are needed", remedy="write --autoscale 1:8"
        )
    least, most = int(match[1]), int(match[2])
    if target is None:
        return CountRules(least, most)
    return CountRules(least, most, target=parse_rate(target), worth=WORTH_OF_A_TARGET)


@dataclass(frozen=True)
class Decision:
    """A number of trainers, and the figures that speak for it.

    Attributes:
        present, planned: numbers of trainers; equal if the job keeps them.
        rates: examples/s of each number that was measured.
        expected: examples/s of each number, measured or extrapolated.
        rules: what is wanted of the number.
    """

    present: int
    planned: int
    rates: dict[int, float]
    expected: dict[int, float]
    rules: CountRules

    @property
    def text(self) -> str:
        """One line with the decision, its figures, and what speaks for it."""
        if self.planned == self.present:
            what = f"autoscale keeps {counted(self.present, 'trainer')}"
        else:
            what = f"autoscale goes from {self.present} to {counted(self.planned, 'trainer')}"
        measured = " and ".join(f"{count(rate)} with {number}" for number, rate in sorted(self.rates.items()))
        parts = [f"{what}: examples/s measured {measured}"]
        compared = self._compared
        if compared in self.expected and compared not in self.rates:
            parts[0] += f", expected {count(self.expected[compared])} with {compared}"
        if self.rules.target is not None:
            parts.append(f"the target is {count(self.rules.target)}")
        if (margin := self.margin) is not None:
            least = self.rules.least
            whose = "one alone trains" if least == 1 else f"one of {least} trains"
            least_gain = "" if self.rules.target is not None else f"; {percent(self.rules.worth)} is worth it"
            parts.append(f"the {self._further} {percent(margin)} of what {whose}{least_gain}")
        return "; ".join(parts)

    @property
    def margin(self) -> float | None:
        """Speed that a trainer adds, over that of one of the fewest.

        None without figures.
        """
        other = self._compared
        if other not in self.expected or self.present not in self.expected or other == self.present:
            return None
        least = self.rules.least
        added = (self.expected[other] - self.expected[self.present]) / (other - self.present)
        return added / (self.expected[least] / least)

    @property
    def _compared(self) -> int:
        """The number that the present one is held against."""
        if self.planned != self.present:
            return self.planned
        return self.present + 1 if self.present < self.rules.most else self.present - 1

    @property
    def _further(self) -> str:
        more = abs(self._compared - self.present)
        if self._compared < self.present:
            return "last one adds" if more == 1 else f"last {more} each add"
        return "next one adds" if more == 1 else f"next {more} each add"


@dataclass
class _Window:
    """A stretch of time in which the number of trainers did not change."""

    trainers: int
    since: float
    trained: int | None = None
    kept: bool = False


class TrainerCounts:
    """From a job's statuses to its number of trainers, without I/O.

    A window of `window_seconds` begins `join_seconds` after the number of trainers last changed, because
    trainers that have just joined are not warm. Its rate goes to the law, which then decides.
    """

    def __init__(self, rules: CountRules) -> None:
        self._rules = rules
        self._law = CountLaw(rules)
        self._window: _Window | None = None
        # Changes that were refused in a row, and windows to let pass before the next one.
        self._refusals = 0
        self._pause = 0

    @property
    def rates(self) -> dict[int, float]:
        """The examples per second of each number of trainers that was measured."""
        return self._law.rates

    def decide(self, status: Status) -> Decision | None:
        """Return a decision: to change the number, or once to keep it."""
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
        rate = (status.progress.trained - window.trained) / (now - window.since)
        window.since, window.trained = now, status.progress.trained
        if rate <= 0.0:
            # There was nothing to train, which says nothing of the number of trainers.
            return None
        self._law.observe(trainers, rate)
        best = self._law.best_count(trainers, status.progress.seconds_left)
        if best == trainers and window.kept:
            return None
        if best != trainers and self._pause > 0:
            self._pause -= 1
            return None
        window.kept = True
        return Decision(trainers, best, self.rates, self._law.expected(), self._rules)

    def answered(self, *, refused: bool) -> None:
        """Take the answer to a change.

        After one that was refused the next one comes a window later, then two, then four, at most
        LONGEST_PAUSE: each is an event of the job, and a full cluster may stay full.
        """
        self._refusals = self._refusals + 1 if refused else 0
        self._pause = min(2 ** max(0, self._refusals - 1), LONGEST_PAUSE) - 1


async def autoscale_job(
    address: str,
    counts: TrainerCounts,
    changed: Callable[[str], object],
    refused: Callable[[ClusterError], object],
) -> str:
    """Keep a job at the law's number of trainers until it ends.

    Each decision becomes an event of the job. Returns the job's outcome. Raises ClusterError if nothing
    answers.

    Args:
        address: the coordinator's.
        counts: what was measured so far; a new connection goes on with it.
        changed: called with the text of each decision that was carried out.
        refused: called if the job refuses a change; if it returns, the change is tried again later.
    """
    watched = WatchedJob(address)
    async with open_channel(address, watched.handle) as channel:
        status: Status | None = await watched.first_status(channel, notify_end=True)
        while status is not None:
            decision = counts.decide(status)
            if decision is not None:
                try:
                    if await _carry_out(decision, channel, watched) is None:
                        break
                    counts.answered(refused=False)
                    changed(decision.text)
                except RemoteError as error:
                    counts.answered(refused=True)
                    refused(ClusterError(error.what, where=address, remedy=error.remedy))
            with suppress(TimeoutError):
                await asyncio.wait_for(watched.ended.wait(), PERIOD_SECONDS)
            status = await watched.next_status(channel)
    return watched.outcome


async def _carry_out(decision: Decision, channel: RpcChannel, watched: WatchedJob) -> ScaleReply | None:
    """Have the coordinator change the number of trainers; None if the job ended meanwhile."""
    request = Scale("trainer", decision.planned, decision.text)
    return await race(channel.call(request, timeout_seconds=SCALE_SECONDS), watched.ended.wait())


def require_scalable(job: Job, rules: CountRules) -> None:
    """Raise JobFileError for a job whose trainers cannot join and leave within the rules."""
    flag = f"--autoscale {rules.least}:{rules.most}"
    present = job.trainer.count
    if job.network.slow is not None:
        raise JobFileError(
            f"{flag} given with an emulated network, which has no link for another trainer",
            remedy="leave out --delay and --bandwidth, or --autoscale",
        )
    if present < 2:
        raise JobFileError(
            f"{flag} and trainer.count = {present} given; a job of one trainer takes no others",
            remedy="set trainer.count = 2; with MIN = 1 the second leaves if it adds too little",
        )
    if not rules.least <= present <= rules.most:
        raise JobFileError(
            f"{flag} and trainer.count = {present} given, which is not within it",
            remedy="give a range with trainer.count, the number to begin with",
        )


async def keep_scaled(endpoint: str, rules: CountRules) -> None:
    """Keep the number of trainers at what the law chooses, until the job ends.

    Runs on the supervisor's loop. A change that is not possible now, or a coordinator that is away, is tried
    again.
    """
    counts = TrainerCounts(rules)
    while True:
        try:
            await autoscale_job(endpoint, counts, log.info, _report_refusal)
            return
        except ClusterError as error:
            log.warning("the number of trainers is not followed for now: %s", error)
        await asyncio.sleep(RETRY_SECONDS)


def _report_refusal(error: ClusterError) -> None:
    log.warning("the number of trainers stays for now: %s", error)
