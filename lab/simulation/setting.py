"""What is simulated: trainers, their rounds, links, sites and deaths."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from ...pipeline.config.sections import SyncSection
from ...pipeline.types import FrozenModel

Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]

FRAME_PAYLOAD: Final = 1448 / 1514
"""Share of an Ethernet frame of 1,514 bytes that is payload of TCP with time stamps."""
MOST_TRAINERS: Final = 10_000
SIMULATED_NODES: Final = 4
"""Of more sync nodes only so many are simulated: all have equal slices and equal links."""


class Setting(FrozenModel):
    """One simulated job.

    Attributes:
        trainers: number of trainers; each trains at a steady rate, also while it synchronizes in the
            background.
        sync_nodes: sync nodes of a center; each has an equal slice.
        site_size: 0 for a center; otherwise a two-level tree without sync nodes: so many trainers of a site
            average in each round.
        site_every: with a tree, all trainers average in every so-many-th round.
        mode, every, duty, gap: as in the job file's [sync].
        step_seconds: time of one iteration of a trainer, over all its workers.
        round_cpu_seconds: CPU time of a round in its trainer, with one message each way.
        message_cpu_seconds: CPU time of each further pair of messages of a round.
        model_bytes: bytes of a round in one direction, over all slices.
        center_seconds_per_byte: time of a sync node for a byte of its slice; exchanges wait for each other.
        link_bytes_per_second: bandwidth of each sync node in each direction, and of each trainer in a tree.
        site_bytes_per_second: with a tree, bandwidth of a site to all others; None: not a limit.
        delay_seconds: one way between two nodes.
        share_spread: standard deviation of the logarithm of a transfer's share of a link. TCP does not share
            a link equally; with 0, equal transfers that begin together would end together for ever.
        deaths_an_hour: deaths of each trainer in an hour.
        sync_deaths_an_hour: deaths of each sync node in an hour.
        detection_seconds: time until the death of a trainer is noticed.
        recovery_seconds: time from then on until a dead node is replaced.
        checkpoint_seconds: time between the checkpoints of data parallelism, see `simulate_data_parallel`.
        merges: whether the center merges as `decoupled` does, with the next three as its options.
        quorum: 0 for half of the trainers.
        grace, longest_wait_seconds: as in `DecoupledOptions`.
        start_seconds: trainers start spread evenly over this time.
        warm_seconds: time before the measurement.
        seconds: time of the measurement.
        seed: of everything that is drawn.
    """

    trainers: Annotated[int, Field(ge=1, le=MOST_TRAINERS)] = 1
    sync_nodes: Positive = 1
    site_size: Annotated[int, Field(ge=0)] = 0
    site_every: Positive = 8
    mode: Literal["shadow", "fixed"] = "shadow"
    every: Positive = 30
    duty: Annotated[float, Field(gt=0, le=1)] = 0.01
    gap: Positive | None = None
    step_seconds: Rate
    round_cpu_seconds: Rate
    message_cpu_seconds: Seconds = 0.0
    model_bytes: Rate
    center_seconds_per_byte: Seconds = 0.0
    link_bytes_per_second: Rate
    site_bytes_per_second: Rate | None = None
    delay_seconds: Seconds = 0.0
    share_spread: Annotated[float, Field(ge=0, le=3)] = 0.5
    deaths_an_hour: Seconds = 0.0
    sync_deaths_an_hour: Seconds = 0.0
    detection_seconds: Seconds = 0.0
    recovery_seconds: Seconds = 10.0
    checkpoint_seconds: Rate = 300.0
    merges: bool = False
    quorum: Annotated[int, Field(ge=0)] = 0
    grace: Seconds = 4.0
    longest_wait_seconds: Annotated[float, Field(gt=0, le=60)] = 1.0
    start_seconds: Seconds = 0.0
    warm_seconds: Seconds = 5.0
    seconds: Rate = 60.0
    seed: Annotated[int, Field(ge=0)] = 1

    @model_validator(mode="after")
    def _consistent(self) -> Setting:
        if self.site_size and self.mode == "fixed":
            raise ValueError("site_size: a tree is simulated in shadow mode only")
        if self.site_size > self.trainers:
            raise ValueError(f"site_size: {self.site_size} given; there are {self.trainers} trainers")
        if self.site_size and self.merges:
            raise ValueError("merges: a tree has no center that merges")
        if self.quorum > self.trainers:
            raise ValueError(f"quorum: {self.quorum} given; there are {self.trainers} trainers")
        return self

    @property
    def out_seconds(self) -> float:
        """Time from the death of a trainer until it is replaced."""
        return self.detection_seconds + self.recovery_seconds

    @property
    def cpu_of_round(self) -> float:
        """CPU seconds of a round in its trainer, with all messages."""
        return self.round_cpu_seconds + self.message_cpu_seconds * (self.sync_nodes - 1)

    @property
    def slice_bytes(self) -> float:
        """Bytes on a link of one slice in one direction, with the frames' headers."""
        return self.model_bytes / self.sync_nodes / FRAME_PAYLOAD

    @property
    def simulated_nodes(self) -> int:
        """Number of sync nodes whose links and queues are simulated."""
        return min(self.sync_nodes, SIMULATED_NODES)

    def schedule_section(self) -> SyncSection:
        """Return the [sync] section for `RoundSchedule`."""
        return SyncSection(duty=self.duty, gap=self.gap, start_iterations=0)
