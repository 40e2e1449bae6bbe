"""The verdict on a profiled job, and profile.json."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import NonNegativeFloat

from ..types import ResultModel
from .measurements import LinkMeasurement, ProfileMeasurements
from .reasons import ADVICE, MORE_CORES, PREPARE, deeper, disk_share, reasons_of
from .worker_time import WorkerTime, worker_time

FORMAT_VERSION: Final = 1
PROFILE_JSON: Final = "profile.json"
PROFILE_MARKDOWN: Final = "profile.md"
PROFILE_PICTURE: Final = "profile.png"
TRACE_JSON: Final = "trace.json"

# Without a wait of a third of the time, the job would be one and a half times as fast.
WAIT_SHARE: Final = 1 / 3
COMPUTE_SHARE: Final = 0.6
CORE_SHARE: Final = 0.1
DISK_SHARE: Final = 0.5

Bottleneck = Literal["reader", "network", "embedding", "disk", "compute", "sync", "gil", "balanced"]
WAITS: Final[tuple[Bottleneck, ...]] = ("reader", "network", "embedding", "sync", "gil")


class Verdict(ResultModel):
    """The part of a run to look at first.

    Attributes:
        bottleneck: the longest wait, if it takes a third or more of the workers' time; otherwise "compute" if
            workers compute most of the time, or "balanced". "disk" are embedding nodes that wait for theirs.
        share: the bottleneck's share of the workers' time.
        time: breakdown of all of the workers' time.
        reasons: a sentence for each cause, that of the bottleneck first.
        remedies: suggested remedies.
    """

    bottleneck: Bottleneck
    share: float
    time: WorkerTime
    reasons: list[str]
    remedies: list[str]


class TraceNote(ResultModel):
    """The trace beside the profile.

    Attributes:
        seconds: length of the trace.
        events: number of events.
        clock_error_seconds: largest possible difference between the clocks of machines; 0 for one machine,
            whose processes read one clock.
    """

    seconds: NonNegativeFloat
    events: int
    clock_error_seconds: NonNegativeFloat


class Profile(ResultModel):
    """The content of profile.json.

    Attributes:
        notes: notes on the measurement.
        trace: None if nothing could be traced.
    """

    format_version: Literal[1] = FORMAT_VERSION
    examples_per_second: NonNegativeFloat
    verdict: Verdict
    measured: ProfileMeasurements
    links: list[LinkMeasurement]
    notes: list[str]
    trace: TraceNote | None

    @classmethod
    def of(cls, measured: ProfileMeasurements, notes: list[str], trace: TraceNote | None) -> Profile:
        """Build the profile, with a verdict on the measurements."""
        return cls(
            examples_per_second=measured.examples_per_second,
            verdict=judge(measured),
            measured=measured,
            links=measured.links,
            notes=notes,
            trace=trace,
        )


def judge(measured: ProfileMeasurements) -> Verdict:
    """Find the bottleneck, with reasons and remedies."""
    time = worker_time(measured)
    bottleneck, share = bottleneck_of(time)
    if bottleneck == "embedding" and disk_share(measured) >= DISK_SHARE:
        bottleneck = "disk"
    remedies = ADVICE[bottleneck]
    if bottleneck == "compute" and time.core >= CORE_SHARE:
        remedies = (MORE_CORES, *remedies)
    if bottleneck == "reader" and not measured.prepared:
        remedies = (PREPARE, *remedies)
    if bottleneck == "network" and measured.depth_bounds:
        remedies = (deeper(measured.depth_bounds), *remedies)
    reasons = reasons_of(measured, time, bottleneck)
    return Verdict(bottleneck=bottleneck, share=share, time=time, reasons=reasons, remedies=list(remedies))


def read_profile(path: Path) -> Profile:
    """Read profile.json.

    Raises ValueError if the file is not a profile, OSError if it cannot be read.
    """
    return Profile.model_validate_json(path.read_bytes())


def bottleneck_of(time: WorkerTime) -> tuple[Bottleneck, float]:
    """Return the bottleneck and its share of the workers' time; see `Verdict`."""
    waits: dict[Bottleneck, float] = {cause: getattr(time, cause) for cause in WAITS}
    worst = max(waits, key=lambda cause: waits[cause])
    if waits[worst] >= WAIT_SHARE:
        return worst, waits[worst]
    # More or faster cores would shorten waits for a core and the worker's own Python too.
    working = time.compute + time.core + time.handling
    if working >= COMPUTE_SHARE:
        return "compute", working
    return "balanced", max(working, waits[worst])
