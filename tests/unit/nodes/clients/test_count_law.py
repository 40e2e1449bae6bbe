"""The number of trainers: the dynamic program against brute force, and where the law settles."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.nodes.clients.count_law import (
    CountLaw,
    CountRules,
    change_cost,
    fitted_rates,
    plan_counts,
    window_value,
)

Rates = dict[int, float]
FEW = settings(max_examples=40)


def value(
    plan: Sequence[int], rates: Rates, start: int, targets: Sequence[float | None], rules: CountRules
) -> float:
    unit = rates[rules.least] / rules.least
    whole, before = 0.0, start
    for count, target in zip(plan, targets, strict=True):
        whole += window_value(rates[count], count, target, unit, rules)
        whole -= change_cost(before, count, unit, rules)
        before = count
    return whole


def by_brute_force(rates: Rates, start: int, targets: Sequence[float | None], rules: CountRules) -> float:
    counts = range(rules.least, rules.most + 1)
    plans = itertools.product(counts, repeat=len(targets))
    return max(value(plan, rates, start, targets, rules) for plan in plans)


@FEW
@given(
    data=st.data(),
    least=st.integers(1, 3),
    further=st.integers(0, 3),
    windows=st.integers(1, 4),
    worth=st.floats(0.05, 0.95),
    join=st.floats(0.0, 200.0),
    reluctance=st.floats(0.0, 1.0),
)
def test_the_dynamic_program_agrees_with_brute_force(
    data: st.DataObject,
    least: int,
    further: int,
    windows: int,
    worth: float,
    join: float,
    reluctance: float,
) -> None:
    most = least + further
    rules = CountRules(least, most, worth=worth, join_seconds=join, reluctance=reluctance)
    rates = {count: data.draw(st.floats(1.0, 1e5)) for count in range(least, most + 1)}
    targets = data.draw(st.lists(st.none() | st.floats(1.0, 1e5), min_size=windows, max_size=windows))
    start = data.draw(st.integers(1, most + 2))
    plan = plan_counts(rates, start, targets, rules)
    assert len(plan) == windows
    best = by_brute_force(rates, start, targets, rules)
    assert value(plan, rates, start, targets, rules) == pytest.approx(best, rel=1e-9, abs=1e-6)


def test_looking_ahead_pays() -> None:
    """The control: a plan that looks one window ahead never joins for what pays only later."""
    rules = CountRules(1, 2, worth=0.5, window_seconds=10.0, join_seconds=30.0)
    rates = {1: 100.0, 2: 200.0}
    assert plan_counts(rates, 1, [None], rules) == (1,)
    assert plan_counts(rates, 1, [None] * 8, rules) == (2,) * 8


def test_a_peak_is_met_before_it_comes_only_if_joining_is_cheap() -> None:
    rates = {n: 100.0 * n for n in range(1, 5)}
    targets = [100.0, 400.0, 400.0, 100.0]
    cheap = CountRules(1, 4, join_seconds=0.0, reluctance=0.0)
    assert plan_counts(rates, 1, targets, cheap) == (1, 4, 4, 1)
    dear = CountRules(1, 4, join_seconds=1e4)
    assert plan_counts(rates, 1, targets, dear) == (1, 1, 1, 1)


@FEW
@given(
    per=st.floats(10.0, 1e5),
    contention=st.floats(0.0, 0.3),
    crosstalk=st.floats(0.0, 0.02),
)
def test_the_law_of_scalability_is_found_from_four_counts(
    per: float, contention: float, crosstalk: float
) -> None:
    def law(n: int) -> float:
        return per * n / (1 + contention * (n - 1) + crosstalk * n * (n - 1))

    found = fitted_rates({n: law(n) for n in (1, 2, 4, 8)}, 1, 32)
    for n in range(1, 33):
        assert found[n] == pytest.approx(law(n), rel=0.05)


def test_what_was_measured_stays_and_one_count_is_linear() -> None:
    assert fitted_rates({2: 200.0}, 1, 4) == pytest.approx({1: 100.0, 2: 200.0, 3: 300.0, 4: 400.0})
    noisy = {1: 100.0, 2: 190.0, 3: 310.0}
    assert {n: rate for n, rate in fitted_rates(noisy, 1, 4).items() if n in noisy} == noisy
    with pytest.raises(ValueError, match="no rate was measured"):
        fitted_rates({1: 0.0}, 1, 4)


def settle(law: CountLaw, rates: Rates, start: int) -> list[int]:
    """The counts of 12 decisions in a job that scales like `rates`."""
    counts = [start]
    for _ in range(12):
        law.observe(counts[-1], rates[counts[-1]])
        counts.append(law.best_count(counts[-1]))
    return counts


def test_a_job_that_scales_gets_all_that_it_may_have() -> None:
    counts = settle(CountLaw(CountRules(1, 16)), {n: 1000.0 * n for n in range(1, 17)}, 1)
    assert counts[:5] == [1, 2, 4, 8, 16]
    assert set(counts[5:]) == {16}


def test_a_job_behind_a_full_reader_gets_no_more_than_are_worth_it() -> None:
    rates = {n: min(1000.0 * n, 5000.0) for n in range(1, 17)}
    counts = settle(CountLaw(CountRules(1, 16)), rates, 1)
    assert counts[-1] == counts[-4], "it settles"
    assert 4 <= counts[-1] <= 6
    greedy = settle(CountLaw(CountRules(1, 16, worth=0.01)), {n: 1000.0 * n for n in range(1, 17)}, 1)
    assert greedy[-1] == 16, "the control"


def test_a_target_takes_the_fewest_trainers_that_reach_it() -> None:
    rates = {n: 1000.0 * n * 0.97 ** (n - 1) for n in range(1, 17)}
    counts = settle(CountLaw(CountRules(1, 16, target=5000.0, worth=0.2)), rates, 1)
    fewest = min(n for n, rate in rates.items() if rate >= 5000.0)
    assert counts[-1] == fewest == 6
    down = settle(CountLaw(CountRules(1, 16, target=5000.0, worth=0.2)), rates, 16)
    assert down[-1] == fewest


def test_without_a_measurement_nothing_changes_but_what_must() -> None:
    law = CountLaw(CountRules(2, 4))
    assert [law.best_count(present) for present in (1, 3, 9)] == [2, 3, 4]
    law.observe(3, 0.0)
    assert law.best_count(3) == 3


def test_a_burst_does_not_move_it() -> None:
    """The median of the last windows counts."""
    law = CountLaw(CountRules(1, 8, target=3000.0, worth=0.2))
    for _ in range(4):
        law.observe(3, 3000.0)
    law.observe(3, 10.0)
    assert law.best_count(3) == 3


@pytest.mark.parametrize(("reluctance", "flaps"), [(0.2, False), (0.0, True)], ids=["reluctant", "control"])
def test_noise_around_the_threshold_does_not_move_it(reluctance: float, flaps: bool) -> None:
    """A second trainer adds half of the first, and each window is off by up to 6%."""
    rates = {1: 1000.0, 2: 1500.0}
    # Without a price of joining, so that only the reluctance holds it.
    law = CountLaw(CountRules(1, 2, reluctance=reluctance, join_seconds=0.0))
    noise = random.Random(7)
    law.observe(1, rates[1])
    law.observe(2, rates[2])
    present, changes = 2, 0
    for _ in range(200):
        law.observe(present, rates[present] * noise.uniform(0.94, 1.06))
        wanted = law.best_count(present)
        changes += wanted != present
        present = wanted
    assert (changes > 0) == flaps, changes


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((0, 4), "0:4 given"), ((5, 4), "5:4 given"), ((1, 4, None, 1.0), "worth: 1 given")],
)
def test_rules_that_cannot_be_are_refused(arguments: tuple[int, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CountRules(*arguments)
