"""The rate of each label in a sample of the training rows.

The output bias starts from it. Imports no torch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import numpy as np

from ....pipeline.config.job import Job
from ....pipeline.data.batch import Batch
from ....pipeline.data.span import Span
from ....pipeline.input.sample import LeastSample, take_sample
from ....pipeline.text.format import count

RATE_EXAMPLES: Final = 65_536
RATE_SECONDS: Final = 1.0
# At a rate of 25% the log-odds from so many examples are off by 0.04 on average; a random bias is by 1.1.
LEAST_EXAMPLES: Final = 4_096

log = logging.getLogger(__name__)


def sampled_label_rates(
    job: Job, spans: Sequence[Span], seconds: float | None = RATE_SECONDS
) -> tuple[float, ...]:
    """Return each label's rate in a sample of the training rows.

    Examples have the weights that training gives them, and negatives count as far as training keeps them.
    Half a positive and half a negative are added, so a rate is never 0 or 1. Returns () if
    `model.output_bias` does not ask for the rate, if the input is sorted in memory (a sample of it would have
    rows of the test), or if no example can be read. Reading takes at most `seconds`, but up to half of
    `run.start_timeout_seconds` for the first LEAST_EXAMPLES: a random bias costs a short job some of its
    quality. None, or `run.deterministic`, sets no limit.
    """
    if job.model.output_bias != "label_rate":
        return ()
    if any(span.kind == "sorted" for span in spans):
        log.info("the output bias is drawn at random: input that is sorted in memory cannot be sampled")
        return ()
    # For each label the weight of its examples, and that of the positives among them.
    sums = np.zeros((2, len(job.data.label_names)))
    counted = np.zeros(1)

    def add(batch: Batch) -> bool:
        weights = batch.weights if len(batch.weights) else np.ones_like(batch.labels)
        labels = np.vstack([batch.labels, *batch.other_labels])
        factors = np.where(labels == 1.0, job.model.positive_weight, job.data.negative_share)
        weighted = factors * weights
        sums[:] += weighted.sum(axis=1), (weighted * labels).sum(axis=1)
        counted[0] += len(batch)
        return True

    seconds = None if job.run.deterministic else seconds
    least = LeastSample(LEAST_EXAMPLES, job.run.start_timeout_seconds / 2)
    take_sample(job, spans, add, examples=RATE_EXAMPLES, seconds=seconds, least=least)
    if not sums[0].all():
        return ()
    rates = tuple((float(positives) + 0.5) / (float(weight) + 1.0) for weight, positives in sums.T)
    for name, rate in zip(job.data.label_names, rates, strict=True):
        log.info("the rate of %s is %.4g in a sample of %s examples", name, rate, count(int(counted[0])))
    return rates


def lacks_label_rates(job: Job, spans: Sequence[Span], rates: Sequence[float]) -> bool:
    """Return whether there are no rates although the input could have been sampled."""
    needed = job.model.output_bias == "label_rate" and bool(spans)
    return needed and not rates and not any(span.kind == "sorted" for span in spans)
