"""The speed and the sync gap of a layout on given machines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...pipeline.config.job import Job
from ...pipeline.config.trainer import MOST_LOOKUPS_AHEAD
from ...pipeline.types import Float64Array
from .demands import Demands
from .layout import Layout, Placement, place
from .machine import Machine
from .queueing import closed_network, core_share, lock_cycle_seconds, paced_cycle_seconds, private_and_shared

WORKERS: Final = "workers"
LOCK: Final = "interpreter lock"
CORES: Final = "cores"
READERS: Final = "readers"
EMBEDDING: Final = "embedding nodes"
COORDINATOR: Final = "coordinator"
NETWORK: Final = "network"
IN_FLIGHT: Final = "batches in flight"
# Batches in flight hide the waits if a station is used for this share of the time.
_HIDDEN: Final = 0.9
# Rate and time between rounds depend on each other; they settle within a few turns.
_TURNS: Final = 30
_HALVINGS: Final = 30
_LEAST_SHARE: Final = 1e-3
_LEAST_RATE: Final = 1e-3


@dataclass(frozen=True)
class JobRules:
    """What the job file says of batches in flight and of rounds.

    Attributes:
        lookups_ahead: `trainer.lookups_ahead`; None: as many as hide the links' delay.
        credit: `trainer.credit`, most lookups ahead; None: as many as are needed.
        duty, gap, every: `sync.duty`, `sync.gap` and `sync.every`.
        link_bytes_per_second: `sync.link_bytes_per_second`.
        synchronizes: whether the job has rounds.
        fixed: whether workers wait for their rounds.
        has_center: whether the algorithm needs sync nodes.
    """

    lookups_ahead: int | None
    credit: int | None
    duty: float
    gap: int | None
    every: int
    link_bytes_per_second: float | None
    synchronizes: bool
    fixed: bool
    has_center: bool

    @classmethod
    def of(cls, job: Job) -> JobRules:
        synchronizes = job.sync.algorithm != "none"
        return cls(
            lookups_ahead=None if job.trainer.lookups_ahead == "auto" else job.trainer.lookups_ahead,
            credit=None if job.trainer.credit == "auto" else job.trainer.credit,
            duty=job.sync.duty,
            gap=job.sync.gap,
            every=job.sync.every,
            link_bytes_per_second=job.sync.link_bytes_per_second,
            synchronizes=synchronizes,
            fixed=synchronizes and job.sync.mode == "fixed",
            has_center=job.sync_nodes > 0,
        )

    def in_flight(self, delay_seconds: float, step_seconds: float) -> int:
        """Return the batches of a worker from the request of their vectors to the end of their step."""
        most = MOST_LOOKUPS_AHEAD if self.credit is None else self.credit
        hiding = max(1, math.ceil(delay_seconds / step_seconds))
        return 1 + min(hiding if self.lookups_ahead is None else self.lookups_ahead, most)


@dataclass(frozen=True)
class Prediction:
    """What a layout does on its machines.

    Attributes:
        examples_per_second: the job's speed.
        limits: the examples per second that each station alone would allow, the least first.
        sync_gap: iterations of a trainer between two rounds; None without rounds.
        round_period_seconds: time between the begins of two rounds of a trainer; None without rounds.
        placement: the nodes of each machine.
    """

    examples_per_second: float
    limits: tuple[tuple[str, float], ...]
    sync_gap: float | None
    round_period_seconds: float | None
    placement: Placement


def thread_limits(layout: Layout, demands: Demands, rules: JobRules) -> dict[str, float]:
    """Return the examples per second that each kind of thread allows.

    A thread serves one request at a time, so a station of n threads allows n over its demand.
    """
    step = lock_cycle_seconds(
        max(0.0, demands.step_seconds - demands.locked_seconds), demands.locked_seconds, layout.workers
    )
    shard, writers = demands.shard_seconds, demands.writer_seconds
    if writers and layout.embedding_threads > 1:
        serving = max(shard, writers / layout.embedding_threads)
    else:
        serving = shard + writers
    limits = {
        WORKERS: _over(layout.trainers * layout.workers * demands.batch, step),
        READERS: _over(layout.readers, demands.parser_seconds),
        EMBEDDING: _over(layout.embedding_nodes, serving),
        COORDINATOR: _over(1.0, demands.coordinator_seconds),
    }
    if demands.locked_seconds and not rules.fixed and layout.workers > 1:
        limits[LOCK] = _over(layout.trainers * demands.batch, demands.locked_seconds)
    return limits


def rate_bound(layout: Layout, demands: Demands, rules: JobRules, cores: float) -> float:
    """Return an upper bound of a layout's speed on so many cores."""
    return min(*thread_limits(layout, demands, rules).values(), _over(cores, demands.cpu_seconds))


def predict(
    layout: Layout, demands: Demands, rules: JobRules, machine: Machine, machines: int
) -> Prediction | None:
    """Predict the speed of a layout; None if memory does not suffice.

    Speed is the least of what threads, cores, links and batches in flight allow. The machines' cores are
    shared by all nodes on them, and trainers train as fast as their machine lets each of them. A worker
    always wants a core, and gets its share; other threads get the cores that they need, up to as much.
    """
    threads = thread_limits(layout, demands, rules)
    bound = rate_bound(layout, demands, rules, float(machine.cores * machines))
    placement = place(layout, demands, machine, machines, bound)
    if placement is None:
        return None
    all_cores = _over(float(machine.cores * machines), demands.cpu_seconds)
    rate, period, shares = bound, None, np.ones_like(placement.trainers)
    for _ in range(_TURNS):
        share = float(np.average(shares, weights=placement.trainers))
        period = round_period(layout, demands, rules, machine, machines, rate, share)
        workers = _workers_rate(layout, demands, rules, machine, machines, period)
        limits = threads | {_kept_by(workers, threads, rules): workers}
        limits[CORES] = _cores_rate(placement, demands, machine, np.inf, period, all_cores)
        if machines > 1 and machine.nic_bytes_per_second is not None:
            limits[NETWORK] = _network_rate(placement, demands, machine.nic_bytes_per_second, period)
        of_one = workers / layout.trainers
        # Fewer rounds leave a larger share, which lets more come: half of the way avoids swinging.
        shares = np.sqrt(shares * _core_shares(placement, demands, machine, of_one, period, rate))
        together = _cores_rate(placement, demands, machine, of_one * shares, period, bound)
        new = min(together, *limits.values())
        if abs(new - rate) <= 1e-6 * rate:
            break
        # Without any rate there would be no rounds.
        rate = max(new, _LEAST_RATE * bound)
    gap = None
    if period is not None:
        iterations = rate / (layout.trainers * demands.batch)
        gap = float(rules.every) if rules.fixed else period * iterations
    ordered = tuple(sorted(limits.items(), key=lambda item: item[1]))
    return Prediction(rate, ordered, gap, period, placement)


def round_period(
    layout: Layout,
    demands: Demands,
    rules: JobRules,
    machine: Machine,
    machines: int,
    rate: float,
    share: float = 1.0,
) -> float | None:
    """Return the seconds between two rounds of a trainer; None without rounds.

    In the background a trainer waits for its duty cycle and its gap (`RoundSchedule`). The links and services
    of the sync nodes are stations that all trainers share. A thread of a round gets no more than the `share`
    of a core that a worker gets.
    """
    if not rules.synchronizes or rate <= 0.0:
        return None
    stations, delay = _round_work(layout, demands, machine, machines)
    if rules.fixed:
        # Each worker computes `every` steps between two rounds of its own.
        thinking = rules.every * demands.step_seconds + delay
        customers = layout.trainers * layout.workers
        return customers / closed_network(stations, customers, thinking).throughput
    cost = demands.round_cpu_seconds
    moved = demands.round_sent_bytes + demands.round_received_bytes
    if rules.link_bytes_per_second is not None:
        cost = max(cost, moved / rules.link_bytes_per_second)
    iteration = layout.trainers * demands.batch / rate
    least = max(cost / rules.duty, (rules.gap or 0) * iteration)
    at_center = layout.trainers * demands.center_seconds / layout.sync_nodes if layout.sync_nodes else 0.0
    least = max(least, at_center / share, demands.shadow_seconds / share)
    return paced_cycle_seconds(stations, layout.trainers, delay, least)


def _kept_by(workers: float, threads: dict[str, float], rules: JobRules) -> str:
    """Name the full station, or too few batches in flight."""
    if rules.fixed:
        return WORKERS
    for station in (EMBEDDING, WORKERS):
        if workers >= _HIDDEN * threads[station]:
            return station
    return IN_FLIGHT


def _round_work(
    layout: Layout, demands: Demands, machine: Machine, machines: int
) -> tuple[list[float], float]:
    """Return a round's seconds at the shared stations, and outside of them.

    All slices of a round are on their way at once, so one sync node stands for all.
    """
    sent, received = demands.round_sent_bytes, demands.round_received_bytes
    nodes = max(1, layout.sync_nodes)
    stations = [demands.center_seconds / nodes] if layout.sync_nodes else []
    delay = demands.round_seconds
    if machines > 1:
        delay += 2 * machine.delay_seconds
        if machine.nic_bytes_per_second is not None:
            seconds = [sent / machine.nic_bytes_per_second, received / machine.nic_bytes_per_second]
            if layout.sync_nodes:
                stations += [each / nodes for each in seconds]
            else:
                delay += sum(seconds)
    return stations, delay


def _workers_rate(
    layout: Layout, demands: Demands, rules: JobRules, machine: Machine, machines: int, period: float | None
) -> float:
    """Return the examples per second of all workers, with their waits."""
    step = lock_cycle_seconds(
        max(0.0, demands.step_seconds - demands.locked_seconds), demands.locked_seconds, layout.workers
    )
    workers = layout.trainers * layout.workers
    threads = layout.embedding_threads if demands.writer_seconds else 1
    serving = demands.shard_seconds + demands.writer_seconds / threads
    think = 0.0
    if machines > 1:
        # Ids and vectors there and back before the step, gradients after it.
        think = 4 * machine.delay_seconds
        if machine.nic_bytes_per_second is not None:
            moved = (demands.pushed_bytes + demands.looked_up_bytes) * demands.batch
            think += moved / machine.nic_bytes_per_second
    if rules.fixed and period is not None:
        # The wait for rounds keeps the worker's thread, as a longer step would.
        step = max(step, period / rules.every)
    shard = serving * demands.batch / layout.embedding_nodes
    cycle = private_and_shared(step, [shard], workers, rules.in_flight(think, step), think)
    return workers * cycle.throughput * demands.batch


def _cores_rate(
    placement: Placement,
    demands: Demands,
    machine: Machine,
    trainer_limit: Float64Array | float,
    period: float | None,
    bound: float,
) -> float:
    """Return the speed at which the machines' cores are used up.

    Args:
        placement: the nodes of each machine.
        demands: what they cost.
        machine: one of the machines.
        trainer_limit: examples per second of one trainer of each machine that has all the cores it can use.
        period: seconds between rounds of a trainer.
        bound: an upper bound of the speed.
    """
    others_seconds = _seconds_beside(placement, demands)
    left = machine.cores - _round_cores(placement, demands, period)
    most = placement.trainers * trainer_limit if np.all(np.isfinite(trainer_limit)) else np.inf

    def trained(rate: float) -> float:
        free = np.maximum(0.0, left - rate * others_seconds) / demands.trainer_seconds
        return float(np.sum(np.where(placement.trainers > 0, np.minimum(most, free), 0.0)))

    alone = others_seconds > 0.0
    high = min([bound, *(np.maximum(0.0, left[alone]) / others_seconds[alone])])
    if trained(high) >= high:
        return float(high)
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if trained(middle) >= middle:
            low = middle
        else:
            high = middle
    return float(low)


def _core_shares(
    placement: Placement,
    demands: Demands,
    machine: Machine,
    trainer_limit: float,
    period: float | None,
    rate: float,
) -> Float64Array:
    """Return a worker's share of a core on each machine, float64 [machines].

    `trainer_limit` is the speed of one trainer whose workers have a core each, `rate` that of the job.
    """
    of_workers = demands.step_seconds / demands.batch
    busy = placement.trainers * trainer_limit * of_workers
    of_others = demands.trainer_seconds - of_workers
    load = rate * (_seconds_beside(placement, demands) + _shares(placement.trainers) * of_others)
    load += _round_cores(placement, demands, period)
    shares = {
        pair: max(_LEAST_SHARE, core_share(pair[0], machine.cores, pair[1]))
        for pair in set(zip(busy.tolist(), load.tolist(), strict=True))
    }
    return np.array([shares[pair] for pair in zip(busy.tolist(), load.tolist(), strict=True)])


def _seconds_beside(placement: Placement, demands: Demands) -> Float64Array:
    """Return each machine's CPU seconds for an example of the job, without trainers."""
    return (
        _shares(placement.embedding_nodes) * demands.embedding_seconds
        + _shares(placement.readers) * demands.reader_seconds
        + placement.coordinators * demands.coordinator_seconds
    )


def _round_cores(placement: Placement, demands: Demands, period: float | None) -> Float64Array:
    """Return the cores that rounds keep busy on each machine."""
    if period is None:
        return np.zeros_like(placement.trainers)
    trainers = float(placement.trainers.sum())
    at_centers = _shares(placement.sync_nodes) * trainers * demands.sync_seconds
    cores: Float64Array = (placement.trainers * demands.shadow_seconds + at_centers) / period
    return cores


def _network_rate(placement: Placement, demands: Demands, nic: float, period: float | None) -> float:
    """Return the speed at which a machine's network card is full in one direction.

    What passes between nodes of one machine does not cross its card.
    """
    trainers = _shares(placement.trainers)
    shards, readers = _shares(placement.embedding_nodes), _shares(placement.readers)
    away = 1.0 - trainers
    to_shards = trainers * (1.0 - shards) * demands.pushed_bytes
    from_shards = trainers * (1.0 - shards) * demands.looked_up_bytes
    into = from_shards + trainers * (1.0 - readers) * demands.delivered_bytes
    into += shards * away * demands.pushed_bytes
    out = to_shards + shards * away * demands.looked_up_bytes + readers * away * demands.delivered_bytes
    rounds_in = rounds_out = np.zeros_like(trainers)
    if period is not None:
        every = float(placement.trainers.sum()) / period
        centers = _shares(placement.sync_nodes)
        sent = trainers * (1.0 - centers) * demands.round_sent_bytes
        received = trainers * (1.0 - centers) * demands.round_received_bytes
        rounds_out = every * (sent + centers * away * demands.round_received_bytes)
        rounds_in = every * (received + centers * away * demands.round_sent_bytes)
    bytes_an_example = np.concatenate([into, out])
    left = np.maximum(0.0, nic - np.concatenate([rounds_in, rounds_out]))
    used = bytes_an_example > 0.0
    return float(np.min(left[used] / bytes_an_example[used], initial=np.inf))


def _shares(counts: Float64Array) -> Float64Array:
    """Return each machine's share of a role's nodes; zeros if there are none."""
    total = counts.sum()
    shares: Float64Array = counts / total if total else np.zeros_like(counts)
    return shares


def _over(servers: float, seconds: float) -> float:
    return servers / seconds if seconds > 0.0 else float("inf")
