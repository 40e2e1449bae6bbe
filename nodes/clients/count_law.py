"""Law for the number of trainers of a running job, without I/O or clock."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import numpy as np

# Windows of one count from which its rate is taken.
KEPT_WINDOWS: Final = 5
# Rates of counts that were never tried are extrapolated, so one decision at most doubles the count.
LARGEST_GROWTH: Final = 2
# What a trainer must add to be worth it where a target is to be reached.
WORTH_OF_A_TARGET: Final = 0.1


@dataclass(frozen=True)
class CountRules:
    """What is wanted of the number of trainers.

    Attributes:
        least, most: the numbers to choose from.
        target: examples per second that suffice; None: as many as are worth their machines.
        worth: share of what a trainer alone trains that each further trainer must add; with a target, the
            price of a trainer against examples that are missing.
        window_seconds: time between two decisions.
        join_seconds: time in which a trainer that joins trains nothing.
        horizon: number of windows to look ahead.
        reluctance: share of `worth` by which a trainer must exceed it to join, or fall short of it to leave,
            over the horizon, so that noise moves nothing.
    """

    least: int
    most: int
    target: float | None = None
    worth: float = 0.5
    window_seconds: float = 30.0
    join_seconds: float = 10.0
    horizon: int = 8
    reluctance: float = 0.2

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"{self.least}:{self.most} given; MIN is at least 1 and at most MAX")
        if not 0.0 < self.worth < 1.0:
            raise ValueError(f"worth: {self.worth:g} given; give a share above 0 and below 1")


def plan_counts(
    rates: Mapping[int, float], start: int, targets: Sequence[float | None], rules: CountRules
) -> tuple[int, ...]:
    """Choose the count of each window by dynamic programming (Bellman).

    With X(n) the rate of n trainers, r the target of a window, w its seconds, u = X(least) / least what a
    trainer trains, and j the seconds to join, it maximizes the sum over windows of

        w (min(X(n), r) - worth u n) - j u max(0, n - n before) - h u |n - n before|

    where h is `reluctance` of worth w over the horizon. Of equal plans it takes the one with fewer trainers,
    in the earliest window where they differ.

    Args:
        rates: examples per second of each count from `least` to `most`.
        start: the present count.
        targets: examples per second that suffice in each window; None: no limit.
        rules: what is wanted.
    """
    counts = range(rules.least, rules.most + 1)
    unit = rates[rules.least] / rules.least
    # Best value from a window on, by the count of the window before; and the choice that gives it.
    ahead = dict.fromkeys((*counts, start), 0.0)
    choices: list[dict[int, int]] = []
    for target in reversed(targets):
        gains = {
            count: window_value(rates[count], count, target, unit, rules) + ahead[count] for count in counts
        }
        best: dict[int, float] = {}
        chosen: dict[int, int] = {}
        for before in ahead:
            values = [(gains[count] - change_cost(before, count, unit, rules), -count) for count in counts]
            best[before], least = max(values)
            chosen[before] = -least
        ahead = best
        choices.append(chosen)
    plan: list[int] = []
    for chosen in reversed(choices):
        plan.append(chosen[plan[-1] if plan else start])
    return tuple(plan)


def window_value(rate: float, count: int, target: float | None, unit: float, rules: CountRules) -> float:
    """Return what a window with `count` trainers is worth, in examples."""
    useful = rate if target is None else min(rate, target)
    return rules.window_seconds * (useful - rules.worth * unit * count)


def change_cost(before: int, count: int, unit: float, rules: CountRules) -> float:
    """Return the examples that a change must gain, those of joining trainers included."""
    reluctance = rules.reluctance * rules.worth * rules.window_seconds * rules.horizon
    return unit * (rules.join_seconds * max(0, count - before) + reluctance * abs(count - before))


def fitted_rates(measured: Mapping[int, float], least: int, most: int) -> dict[int, float]:
    """Estimate the rate of every count from those of some.

    A measured count keeps its rate. The others follow the universal scalability law (Gunther, Guerrilla
    Capacity Planning, 2007): n / X(n) = a + b (n - 1) + c n (n - 1), with a, b, c >= 0 of the least squared
    relative error. One measured count gives a linear speedup.

    Args:
        measured: examples per second by number of trainers; at least one above 0.
        least, most: the counts to estimate.

    Raises ValueError if nothing was measured.
    """
    known = {count: rate for count, rate in measured.items() if rate > 0.0}
    if not known:
        raise ValueError("no rate was measured")
    counts = np.array(sorted(known), dtype=np.float64)
    rates = np.array([known[int(count)] for count in counts])
    terms = np.stack([np.ones_like(counts), counts - 1, counts * (counts - 1)], axis=1)
    # A relative error of n / X is one of X.
    scaled = terms * (rates / counts)[:, None]
    best, best_error = np.array([float(np.mean(counts / rates)), 0.0, 0.0]), np.inf
    for size in range(1, min(3, len(counts)) + 1):
        for used in itertools.combinations(range(3), size):
            if 0 not in used:
                continue
            solution = np.linalg.lstsq(scaled[:, used], np.ones_like(counts), rcond=None)[0]
            whole = np.zeros(3)
            whole[list(used)] = solution
            error = float(np.sum((scaled @ whole - 1.0) ** 2))
            # A term more must explain something, and none may be negative.
            if np.all(whole >= 0.0) and whole[0] > 0.0 and error < best_error - 1e-9:
                best, best_error = whole, error
    a, b, c = (float(value) for value in best)
    return {n: known.get(n, n / (a + b * (n - 1) + c * n * (n - 1))) for n in range(least, most + 1)}


@dataclass
class CountLaw:
    """Choose the number of trainers from the rates of the numbers that were tried.

    A state machine: settled windows come in, numbers of trainers go out. All calls come from one thread.

    Attributes:
        rules: what is wanted.
    """

    rules: CountRules
    _windows: dict[int, deque[float]] = field(default_factory=dict)

    def observe(self, trainers: int, examples_per_second: float) -> None:
        """Record a window in which so many trainers trained from begin to end."""
        windows = self._windows.setdefault(trainers, deque(maxlen=KEPT_WINDOWS))
        windows.append(max(0.0, examples_per_second))

    @property
    def rates(self) -> dict[int, float]:
        """The median rate of each count that was tried."""
        return {trainers: median(windows) for trainers, windows in self._windows.items()}

    def best_count(self, present: int, seconds_left: float | None = None) -> int:
        """Return the number of trainers to have next; `present` while nothing was measured.

        `seconds_left` is the time until the job ends, which a change must pay within.
        """
        rules = self.rules
        inside = min(max(present, rules.least), rules.most)
        if not any(rate > 0.0 for rate in self.rates.values()):
            return inside
        windows = rules.horizon
        if seconds_left is not None:
            windows = min(windows, int(seconds_left / rules.window_seconds))
        if windows < 1:
            return inside
        first = plan_counts(self.expected(), present, [rules.target] * windows, rules)[0]
        return min(first, max(rules.least, LARGEST_GROWTH * max(1, present)))

    def expected(self) -> dict[int, float]:
        """Return the rate of each number, measured or extrapolated.

        Raises ValueError before any is known.
        """
        return fitted_rates(self.rates, self.rules.least, self.rules.most)
