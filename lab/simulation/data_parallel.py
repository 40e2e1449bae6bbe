"""Synchronous data parallelism under the same deaths: each one stops all, and takes them to a checkpoint."""

from __future__ import annotations

import math
import random
from typing import Final

from ...pipeline.types import ResultModel
from .setting import Setting

FEWEST_DEATHS: Final = 400
"""The simulated time has about so many deaths, and the setting's seconds at least."""


class DataParallelPoint(ResultModel):
    """What data parallelism comes to.

    Attributes:
        goodput: share of the time that went into iterations which the last checkpoint has.
        deaths: deaths of trainers.
        seconds: simulated time.
        expected_goodput: by the closed form, see `expected_goodput`.
    """

    goodput: float
    deaths: int
    seconds: float
    expected_goodput: float


def simulate_data_parallel(setting: Setting) -> DataParallelPoint:
    """Simulate deaths of trainers of which each stops all.

    The first death of any trainer stops all, for `detection_seconds` and `recovery_seconds`; a death
    meanwhile makes them start again. They go on from the last checkpoint, one every `checkpoint_seconds` of
    training. Checkpoints, all-reduces and slow trainers cost nothing, which favors data parallelism.
    """
    rate = setting.trainers * setting.deaths_an_hour / 3600.0
    if not rate:
        return DataParallelPoint(goodput=1.0, deaths=0, seconds=setting.seconds, expected_goodput=1.0)
    draw = random.Random(setting.seed)
    until = max(setting.seconds, FEWEST_DEATHS / rate)
    passed, kept, deaths = 0.0, 0.0, 0
    while True:
        trained = min(draw.expovariate(rate), until - passed)
        passed += trained
        kept += trained // setting.checkpoint_seconds * setting.checkpoint_seconds
        while passed < until:
            deaths += 1
            another = draw.expovariate(rate)
            passed += min(another, setting.out_seconds)
            if another >= setting.out_seconds:
                break
        if passed >= until:
            break
    return DataParallelPoint(
        goodput=kept / until, deaths=deaths, seconds=until, expected_goodput=expected_goodput(setting)
    )


def expected_goodput(setting: Setting) -> float:
    """Return the expected goodput: r C exp(-r R) / (exp(r C) - 1).

    With r the deaths of all trainers in a second, C the time between checkpoints and R the time that all are
    stopped, a time C of training takes (exp(r C) - 1) exp(r R) / r (Daly, Future Generation Computer Systems
    22(3), 2006, without a cost of checkpoints). For few deaths it is 1 - r (R + C / 2).
    """
    rate = setting.trainers * setting.deaths_an_hour / 3600.0
    exponent = rate * setting.checkpoint_seconds
    if not exponent:
        return 1.0
    if exponent + rate * setting.out_seconds > 700.0:
        return 0.0
    return exponent * math.exp(-rate * setting.out_seconds) / math.expm1(exponent)
