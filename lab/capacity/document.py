"""The answer of `shadowsync plan`, as it is printed by `--json`."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from pydantic import NonNegativeFloat, PositiveInt

from ...pipeline.config.job import Job
from ...pipeline.types import ResultModel
from .machine import Machine
from .prediction import CORES, EMBEDDING, IN_FLIGHT, LOCK, NETWORK, READERS, WORKERS
from .search import PlannedLayout

_SECONDS_AN_HOUR: Final = 3600.0
_MILLION: Final = 1e6
# What raises each limit, for the terminal.
REMEDIES: Final = {
    WORKERS: "more workers or trainers",
    LOCK: "more trainers, with fewer workers each",
    CORES: "more or larger machines",
    IN_FLIGHT: "more workers, or larger trainer.lookups_ahead and trainer.credit where the job has numbers",
    READERS: "more readers, or input that shadowsync prepare wrote",
    EMBEDDING: "more embedding nodes",
    NETWORK: "a faster network card, or codecs for vectors and gradients",
    "coordinator": "a larger trainer.batch",
}


class Limit(ResultModel):
    """A station, and the examples per second that it alone would allow."""

    name: str
    examples_per_second: NonNegativeFloat


class MachineRow(ResultModel):
    """How many machines have the same nodes, and which these are."""

    machines: PositiveInt
    nodes: dict[str, int]


class CapacityPlan(ResultModel):
    """A plan of machines.

    Attributes:
        profile: the profile's run.
        settings: what to set in the job file, by key.
        examples_per_second: expected speed.
        bottleneck, runner_up: the first two of `limits`.
        limits: all limits, the least first.
        sync_gap: expected iterations of a trainer between two rounds; None without rounds.
        round_period_seconds: expected time between rounds of a trainer; None without rounds.
        layout: which nodes the machines have.
        price_an_hour: of all machines; None without `--price`.
        price_of_a_million: price of a million examples; None without `--price`.
        notes: what the plan rests on.
    """

    format_version: Literal[1] = 1
    profile: str
    machines: PositiveInt
    cores: PositiveInt
    settings: dict[str, int | str]
    examples_per_second: NonNegativeFloat
    bottleneck: str
    runner_up: str
    limits: list[Limit]
    sync_gap: float | None
    round_period_seconds: float | None
    layout: list[MachineRow]
    price_an_hour: float | None
    price_of_a_million: float | None
    notes: list[str]

    @classmethod
    def of(
        cls,
        planned: PlannedLayout,
        job: Job,
        machine: Machine,
        profile: str,
        price: float | None,
        notes: list[str],
    ) -> CapacityPlan:
        """Build the plan.

        Args:
            planned: the layout and its prediction.
            job: the job.
            machine: one of the machines.
            profile: the profile's run.
            price: of a machine for a second; None if unknown.
            notes: what the plan rests on.
        """
        prediction = planned.prediction
        limits = [
            Limit(name=name, examples_per_second=rate) for name, rate in prediction.limits if rate < np.inf
        ]
        whole = price * planned.machines if price is not None else None
        rate = prediction.examples_per_second
        return cls(
            profile=profile,
            machines=planned.machines,
            cores=machine.cores,
            settings=_settings(planned, job),
            examples_per_second=rate,
            bottleneck=limits[0].name,
            runner_up=limits[min(1, len(limits) - 1)].name,
            limits=limits,
            sync_gap=prediction.sync_gap,
            round_period_seconds=prediction.round_period_seconds,
            layout=_rows(planned),
            price_an_hour=whole * _SECONDS_AN_HOUR if whole is not None else None,
            price_of_a_million=whole * _MILLION / rate if whole is not None else None,
            notes=notes,
        )


def _settings(planned: PlannedLayout, job: Job) -> dict[str, int | str]:
    layout = planned.layout
    settings: dict[str, int | str] = {
        "trainer.count": layout.trainers,
        "trainer.workers": layout.workers,
        "embedding.nodes": layout.embedding_nodes,
        "embedding.threads": layout.embedding_threads,
        "data.readers": layout.readers,
    }
    if job.sync_nodes:
        # A job with one trainer that names no algorithm would get another one with more trainers.
        settings |= {"sync.algorithm": job.sync.algorithm, "sync.nodes": layout.sync_nodes}
    return settings


def _rows(planned: PlannedLayout) -> list[MachineRow]:
    placement = planned.prediction.placement
    roles = {
        "coordinator": placement.coordinators,
        "trainer": placement.trainers,
        "reader": placement.readers,
        "embedding": placement.embedding_nodes,
        "sync": placement.sync_nodes,
    }
    kinds: dict[tuple[int, ...], int] = {}
    for number in range(planned.machines):
        nodes = tuple(int(counts[number]) for counts in roles.values())
        kinds[nodes] = kinds.get(nodes, 0) + 1
    return [
        MachineRow(
            machines=machines,
            nodes={role: number for role, number in zip(roles, nodes, strict=True) if number},
        )
        for nodes, machines in sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    ]
