"""Run one simulation, and summarize its measurement window."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

import simpy

from ...pipeline.types import ResultModel
from .center import Center
from .data_parallel import DataParallelPoint, simulate_data_parallel
from .setting import FRAME_PAYLOAD, Setting
from .trainer import Trainer
from .tree import Meeting, Site

FULL: Final = 0.9
"""A station that is busy for this share of the time is what limits the rounds."""

LINK: Final = "the link of the sync nodes"
SERVICE: Final = "the sync nodes' own work"
MESSAGES: Final = "the messages of a round"
PACE: Final = "nothing: rounds keep their pace"
WAITING: Final = "a round's own time"
NO_ROUND: Final = "no round ended in the window"


class SimulatedPoint(ResultModel):
    """What one simulation shows in its window.

    Attributes:
        steps_per_second: iterations of all trainers in a second.
        gap: iterations over rounds; None without a round.
        rounds_per_second: of all trainers.
        round_seconds: mean time of a round; None without a round.
        bytes_per_second: payload both ways, over all links of synchronization.
        link_busy: share of the time in which a sync node's link carried bytes, the busier direction; None
            in a tree.
        service_busy: share of the time in which a sync node worked; None in a tree.
        deaths: deaths of trainers.
        lost_share: share of the iterations that were lost with dead trainers.
        goodput: iterations that were not lost, over those of trainers that never wait nor die.
        merged_share: mean share of the trainers in a merge; None without merges.
        data_parallel: the same trainers under synchronous data parallelism; None without deaths.
        limit: what limits the rounds.
    """

    setting: Setting
    steps_per_second: float
    gap: float | None
    rounds_per_second: float
    round_seconds: float | None
    bytes_per_second: float
    link_busy: float | None
    service_busy: float | None
    deaths: int
    lost_share: float
    goodput: float
    merged_share: float | None
    data_parallel: DataParallelPoint | None
    limit: str


@dataclass(frozen=True)
class _Counts:
    iterations: float
    rounds: int
    round_seconds: float
    moved_bytes: float
    up_seconds: float
    down_seconds: float
    service_seconds: float
    deaths: int
    lost: float
    merges: int
    contributions: int


def simulate(setting: Setting) -> SimulatedPoint:
    """Simulate a job; the same setting gives the same result.

    Needs simpy, of the extra `lab`.
    """
    env = simpy.Environment()
    draw = random.Random(setting.seed)
    center = Center(env, setting, draw) if not setting.site_size else None
    starts = [
        setting.start_seconds * (number + draw.random()) / setting.trainers
        for number in range(setting.trainers)
    ]
    trainers = [Trainer(env, setting, center, number, start) for number, start in enumerate(starts)]
    if setting.deaths_an_hour:
        for trainer in trainers:
            env.process(trainer.die_at_times(random.Random(draw.random())))
    sites = _sites(env, setting, trainers)
    env.run(until=setting.warm_seconds)
    first = _counts(setting, trainers, center, sites)
    env.run(until=setting.warm_seconds + setting.seconds)
    return _point(setting, first, _counts(setting, trainers, center, sites))


def _sites(env: simpy.Environment, setting: Setting, trainers: list[Trainer]) -> list[Site]:
    if not setting.site_size:
        return []
    size = setting.site_size
    groups = [trainers[start : start + size] for start in range(0, len(trainers), size)]
    meeting = Meeting(env, len(groups))
    return [Site(env, setting, group, meeting) for group in groups]


def _counts(setting: Setting, trainers: list[Trainer], center: Center | None, sites: list[Site]) -> _Counts:
    nodes = center.nodes if center is not None else []
    for node in nodes:
        node.up.advance()
        node.down.advance()
    # Each simulated node stands for as many as there are.
    merges = [node.merges for node in nodes if node.merges is not None]
    whole = setting.sync_nodes / len(nodes) if nodes else 1.0
    moved = sum(node.up.moved_bytes + node.down.moved_bytes for node in nodes) * whole
    # A tree's bytes are counted where they are sent; each is received once.
    moved += 2 * sum(site.moved_bytes for site in sites)
    return _Counts(
        iterations=sum(trainer.iterations for trainer in trainers),
        rounds=sum(trainer.rounds for trainer in trainers),
        round_seconds=sum(trainer.round_seconds for trainer in trainers),
        moved_bytes=moved * FRAME_PAYLOAD,
        up_seconds=_mean([node.up.busy_seconds for node in nodes]),
        down_seconds=_mean([node.down.busy_seconds for node in nodes]),
        service_seconds=_mean([node.busy_seconds for node in nodes]),
        deaths=sum(trainer.deaths for trainer in trainers),
        lost=sum(trainer.lost_iterations for trainer in trainers),
        merges=sum(of_node.merges for of_node in merges),
        contributions=sum(of_node.contributions for of_node in merges),
    )


def _point(setting: Setting, first: _Counts, last: _Counts) -> SimulatedPoint:
    seconds = setting.seconds
    iterations, rounds = last.iterations - first.iterations, last.rounds - first.rounds
    round_seconds = (last.round_seconds - first.round_seconds) / rounds if rounds else None
    is_tree = bool(setting.site_size)
    busy = max(last.up_seconds - first.up_seconds, last.down_seconds - first.down_seconds) / seconds
    service = (last.service_seconds - first.service_seconds) / seconds
    lost, merges = last.lost - first.lost, last.merges - first.merges
    contributions = last.contributions - first.contributions
    return SimulatedPoint(
        setting=setting,
        steps_per_second=iterations / seconds,
        gap=iterations / rounds if rounds else None,
        rounds_per_second=rounds / seconds,
        round_seconds=round_seconds,
        bytes_per_second=(last.moved_bytes - first.moved_bytes) / seconds,
        link_busy=None if is_tree else min(1.0, busy),
        service_busy=None if is_tree else min(1.0, service),
        deaths=last.deaths - first.deaths,
        lost_share=lost / iterations if iterations else 0.0,
        goodput=(iterations - lost) * setting.step_seconds / (seconds * setting.trainers),
        merged_share=contributions / merges / setting.trainers if merges else None,
        data_parallel=simulate_data_parallel(setting) if setting.deaths_an_hour else None,
        limit=_limit(setting, round_seconds, busy, service),
    )


def _limit(setting: Setting, round_seconds: float | None, busy: float, service: float) -> str:
    """Name what sets the time between rounds."""
    if round_seconds is None:
        return NO_ROUND
    if not setting.site_size and max(busy, service) >= FULL:
        return LINK if busy >= service else SERVICE
    alone = setting.round_cpu_seconds / setting.duty
    if not setting.site_size and setting.cpu_of_round / setting.duty > 2 * alone:
        return MESSAGES
    if round_seconds is not None and round_seconds > alone:
        return WAITING
    return PACE


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
