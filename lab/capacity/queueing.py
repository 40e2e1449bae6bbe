"""Formulas of closed queueing networks: throughput of a fixed number of customers.

Mean value analysis is exact for one class of customers at stations whose servers are shared fairly (Reiser
and Lavenberg, J. ACM 27(2), 1980). With several classes the approximation of Bard and Schweitzer is used.
All times are in seconds. Functions are pure; any thread may call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

_CLOSE: Final = 1e-12
_HALVINGS: Final = 60
# Of threads that run at once; more are as good as impossible below a load of 0.98 of the cores.
_MOST_THREADS: Final = 400


@dataclass(frozen=True, slots=True)
class Cycle:
    """One customer's way through the network.

    Attributes:
        throughput: cycles per second of all customers together.
        seconds: mean time at stations in one cycle, without the think time.
        waits: mean time at each station, queueing included.
        queues: mean number of customers at each station.
    """

    throughput: float
    seconds: float
    waits: tuple[float, ...]
    queues: tuple[float, ...]


def closed_network(demands: Sequence[float], customers: int, think_seconds: float = 0.0) -> Cycle:
    """Solve a closed network of one class by exact mean value analysis.

    Args:
        demands: seconds of work of one cycle at each station, which has one server.
        customers: their number, 1 or more.
        think_seconds: time of a cycle outside of all stations.

    Raises ValueError if there are no customers, or a cycle takes no time at all.
    """
    if customers < 1:
        raise ValueError(f"{customers} customers given; at least 1 is needed")
    if sum(demands) + think_seconds <= 0.0:
        raise ValueError("a cycle without work and think time has no throughput")
    queues = [0.0] * len(demands)
    waits: list[float] = []
    throughput = 0.0
    for present in range(1, customers + 1):
        waits = [demand * (1.0 + queue) for demand, queue in zip(demands, queues, strict=True)]
        throughput = present / (think_seconds + sum(waits))
        queues = [throughput * wait for wait in waits]
    return Cycle(throughput, sum(waits), tuple(waits), tuple(queues))


def private_and_shared(
    private_seconds: float, shared: Sequence[float], classes: int, customers: int, think_seconds: float = 0.0
) -> Cycle:
    """Solve a network of equal classes with private and shared stations.

    A class is a worker with its batches in flight: one thread trains them, and all workers share the
    embedding nodes. Approximation of Bard and Schweitzer: a customer finds a station as it is with a
    fraction 1 / customers of its own class removed.

    Args:
        private_seconds: seconds of work of one cycle at the class's own station.
        shared: seconds of work of one cycle at each shared station.
        classes: number of classes.
        customers: number of customers in each class.
        think_seconds: time of a cycle outside of all stations.

    Returns the cycle of one class: its throughput is that of one class, its first wait that at the own
    station. Raises ValueError as `closed_network` does.
    """
    if customers < 1 or classes < 1:
        raise ValueError(f"{classes} classes of {customers} customers given; at least 1 is needed")
    demands = (private_seconds, *shared)
    if sum(demands) + think_seconds <= 0.0:
        raise ValueError("a cycle without work and think time has no throughput")
    # A customer finds `seen` times its own number: R = d (1 + seen X R), so R = d / (1 - seen d X).
    seen = [count - 1.0 / customers for count in (1, *([classes] * len(shared)))]
    steepest = max(others * demand for others, demand in zip(seen, demands, strict=True))

    def waits_at(throughput: float) -> list[float]:
        return [
            demand / (1.0 - others * demand * throughput)
            for others, demand in zip(seen, demands, strict=True)
        ]

    # The customers that a throughput needs grow with it, so halving finds the one with as many as there are.
    low, high = 0.0, customers / (sum(demands) + think_seconds)
    if steepest > 0.0:
        high = min(high, (1.0 - _CLOSE) / steepest)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle * (think_seconds + sum(waits_at(middle))) < customers:
            low = middle
        else:
            high = middle
    waits = waits_at(low)
    return Cycle(low, sum(waits), tuple(waits), tuple(low * wait for wait in waits))


def lock_cycle_seconds(free_seconds: float, locked_seconds: float, threads: int) -> float:
    """Return the mean seconds of a step if threads share one lock.

    The lock is the one station of a closed network (the machine repairman's), and the part of a step without
    it is the think time.

    Args:
        free_seconds: part of a step without the lock.
        locked_seconds: part of a step that holds the lock.
        threads: number of threads that want it.
    """
    if locked_seconds <= 0.0:
        return free_seconds
    return free_seconds + closed_network([locked_seconds], threads, free_seconds).seconds


def paced_cycle_seconds(
    demands: Sequence[float], customers: int, delay: float, least_seconds: float
) -> float:
    """Return the seconds between two rounds of a customer, at least `least_seconds`.

    A customer whose round ends earlier waits for the rest of that time, and so has cycles of `least_seconds`.
    Without a wait, a cycle takes as long as the stations need.

    Args:
        demands: seconds of work of a round at each shared station.
        customers: number of customers.
        delay: time of a round outside of all stations.
        least_seconds: least time between two begins.
    """
    if sum(demands) + delay <= 0.0:
        return least_seconds
    return max(least_seconds, customers / closed_network(demands, customers, delay).throughput)


def core_share(busy: float, cores: float, load: float) -> float:
    """Return the share of a core that each always busy thread gets.

    Others come and go at random, and all that run share the cores equally: a birth and death process, whose
    distribution depends on the mean of their work only (processor sharing; Kelly, Reversibility and
    Stochastic Networks, 1979).

    Args:
        busy: number of threads that always want a core; need not be whole.
        cores: number of cores.
        load: cores that the others need on average.
    """
    if busy <= 0.0:
        return 1.0
    load = min(load, 0.98 * cores)
    others = np.arange(1.0, _MOST_THREADS)
    shares = np.minimum(1.0, cores / (busy + others))
    logs = np.concatenate([[0.0], np.cumsum(np.log(max(load, 1e-300) / (others * shares)))])
    weights = np.exp(logs - logs.max())
    shares = np.concatenate([[min(1.0, cores / busy)], shares])
    return float(weights @ shares / weights.sum())
