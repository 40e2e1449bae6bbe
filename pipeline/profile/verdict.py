"""Where the bottleneck is: a pure function of what was measured, with its reasons."""

from __future__ import annotations

from typing import Final, Literal

from .advice import ADVICE, MORE_CORES, PREPARE
from .measured import Measured, Part
from .reasons import reasons_of
from .worker_time import WorkerTime, worker_time

# A wait of a third of the time: without it the job were half as fast again.
WAIT_SHARE: Final = 1 / 3
COMPUTE_SHARE: Final = 0.6
CORE_SHARE: Final = 0.1

Bottleneck = Literal["reader", "network", "embedding", "compute", "sync", "gil", "balanced"]
WAITS: Final[tuple[Bottleneck, ...]] = ("reader", "network", "embedding", "sync", "gil")


class Verdict(Part):
    """What to look at first.

    Attributes:
        bottleneck: what takes most of the workers' time from computing, if that is a third or more of it;
            "compute" if they compute most of the time; else "balanced".
        share: how much of the workers' time that is.
        time: where all of their time goes.
        reasons: what was measured that says so, a sentence each, the weightiest first.
        remedies: what would help.
    """

    bottleneck: Bottleneck
    share: float
    time: WorkerTime
    reasons: list[str]
    remedies: list[str]


def judge(measured: Measured) -> Verdict:
    """The verdict; no I/O."""
    time = worker_time(measured)
    bottleneck, share = _bottleneck(time)
    remedies = ADVICE[bottleneck]
    if bottleneck == "compute" and time.core >= CORE_SHARE:
        remedies = (MORE_CORES, *remedies)
    if bottleneck == "reader" and not measured.prepared:
        remedies = (PREPARE, *remedies)
    return Verdict(
        bottleneck=bottleneck,
        share=share,
        time=time,
        reasons=reasons_of(measured, time, bottleneck),
        remedies=list(remedies),
    )


def _bottleneck(time: WorkerTime) -> tuple[Bottleneck, float]:
    waits: dict[Bottleneck, float] = {cause: getattr(time, cause) for cause in WAITS}
    worst = max(waits, key=lambda cause: waits[cause])
    if waits[worst] >= WAIT_SHARE:
        return worst, waits[worst]
    # Steps that wait for a core, and a worker's own Python, end sooner with more or faster cores.
    working = time.compute + time.core + time.handling
    if working >= COMPUTE_SHARE:
        return "compute", working
    return "balanced", max(working, waits[worst])
