"""The measurements of every node in a profile, as in profile.json."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat

from ..config.job import Job
from ..types import ResultModel
from .plan_basis import PlanBasis


class ThreadTime(ResultModel):
    """Seconds that threads of one name ran or waited for a core."""

    cpu_seconds: NonNegativeFloat
    core_wait_seconds: NonNegativeFloat


class NodeMeasurements(ResultModel):
    """One node, over `seconds` of its own clock.

    Attributes:
        machine: an id of the kernel that the node runs on.
        cores: number of cores that the node may use.
        stalled_share: share of the time in which the whole process was stopped.
        locked_share: share of wake-ups, 12 a second, that waited for the interpreter lock.
        threads: threads by name; empty if the system does not report them.
        counts: growth of each count of the node.
        memory_bytes: resident memory at the end.
    """

    name: str
    role: str
    machine: str
    cores: int
    seconds: Annotated[float, Field(gt=0)]
    cpu_seconds: NonNegativeFloat
    stalled_share: NonNegativeFloat
    locked_share: NonNegativeFloat
    threads: dict[str, ThreadTime] = Field(default_factory=dict)
    counts: dict[str, float] = Field(default_factory=dict)
    memory_bytes: NonNegativeFloat = 0.0

    def count(self, name: str) -> float:
        """Return a count's growth; 0 if the node has no such count."""
        return max(0.0, self.counts.get(name, 0.0))

    def share(self, name: str) -> float:
        """Return the growth of a count of seconds, per second."""
        return self.count(name) / self.seconds


class ProfileMeasurements(ResultModel):
    """The measurements of the whole job.

    Attributes:
        workers, batch: the job's settings for each trainer.
        sync: the algorithm and its mode, in words.
        prepared: whether readers read a folder that `shadowsync prepare` wrote.
        depth_bounds: settings by whose numbers a worker has no more batches in flight (`depth_bounds`).
        basis: what `shadowsync plan` needs besides.
    """

    run: str
    seconds: Annotated[float, Field(gt=0)]
    workers: Annotated[int, Field(ge=1)]
    batch: Annotated[int, Field(ge=1)]
    sync: str
    prepared: bool = False
    depth_bounds: list[str] = Field(default_factory=list)
    basis: PlanBasis
    nodes: list[NodeMeasurements]

    def of(self, role: str) -> list[NodeMeasurements]:
        return [node for node in self.nodes if node.role == role]

    @property
    def examples_per_second(self) -> float:
        """Return trained examples per second, summed over trainers."""
        return sum(trainer.share("trained_examples") for trainer in self.of("trainer"))

    @property
    def cores_used(self) -> float:
        """Return the mean number of busy cores, summed over nodes."""
        return sum(node.cpu_seconds / node.seconds for node in self.nodes)

    @property
    def cores(self) -> int:
        """Return the number of usable cores, summed over machines."""
        return sum({node.machine: node.cores for node in self.nodes}.values())

    @property
    def links(self) -> list[LinkMeasurement]:
        """Return each trainer's traffic with each other node.

        A pair of trainers has two entries, one from each side.
        """
        links = []
        for trainer in self.of("trainer"):
            others = [key.removeprefix("to/") for key in trainer.counts if key.startswith("to/")]
            for other in others:
                up, down = trainer.share(f"to/{other}"), trainer.share(f"from/{other}")
                shared = trainer.share(f"shared/{other}")
                links.append(
                    LinkMeasurement(trainer=trainer.name, other=other, sent=up, received=down, shared=shared)
                )
        return links


def depth_bounds(job: Job) -> list[str]:
    """Return the settings that bound how many batches a worker has in flight, where the job gives a number.

    Empty for a deterministic job, whose workers wait for each lookup whatever the settings are.
    """
    if job.run.deterministic:
        return []
    settings = {"trainer.lookups_ahead": job.trainer.lookups_ahead, "trainer.credit": job.trainer.credit}
    return [key for key, value in settings.items() if value != "auto"]


class LinkMeasurement(ResultModel):
    """Bytes per second between a trainer and another node.

    Attributes:
        shared: bytes per second that pass both ways in shared memory, not in messages.
    """

    trainer: str
    other: str
    sent: NonNegativeFloat
    received: NonNegativeFloat
    shared: NonNegativeFloat = 0.0
