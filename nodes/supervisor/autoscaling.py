"""The number of trainers that a supervisor keeps by their measured speed."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ...pipeline.config.job import Job
from ...pipeline.errors import ClusterError, JobFileError
from ..clients.autoscale import TrainerCounts, autoscale_job
from ..clients.count_law import CountRules

RETRY_SECONDS: Final = 5.0

log = logging.getLogger(__name__)


def require_scalable(job: Job, rules: CountRules) -> None:
    """Raise JobFileError for a job whose trainers cannot join and leave within the rules."""
    given = f"--autoscale {rules.least}:{rules.most}"
    present = job.trainer.count
    if job.trainer.balance != "off":
        raise JobFileError(
            f'{given} and trainer.balance = "{job.trainer.balance}" given; a balanced job keeps its trainers',
            remedy='set trainer.balance = "off"',
        )
    if job.network.slow is not None:
        raise JobFileError(
            f"{given} given with an emulated network, which has no link for another trainer",
            remedy="leave out --delay and --bandwidth, or --autoscale",
        )
    if present < 2:
        raise JobFileError(
            f"{given} and trainer.count = {present} given; a job of one trainer takes no others",
            remedy="set trainer.count = 2; with MIN = 1 the second leaves if it adds too little",
        )
    if not rules.least <= present <= rules.most:
        raise JobFileError(
            f"{given} and trainer.count = {present} given, which is not within it",
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
