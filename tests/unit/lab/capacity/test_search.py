"""The search for a layout, against trying all of them; what predictions must obey."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.lab.capacity import search
from shadowsync.lab.capacity.layout import Layout, memory_of, place
from shadowsync.lab.capacity.machine import Machine
from shadowsync.lab.capacity.prediction import CORES, EMBEDDING, NETWORK, READERS, WORKERS, Prediction
from shadowsync.lab.capacity.search import (
    SLACK,
    PlannedLayout,
    Space,
    best_layout,
    counts,
    plan_for_machines,
    plan_for_target,
)
from shadowsync.pipeline.errors import JobFileError, ResourceError
from shadowsync.tests.support.coordinator.capacity import GIB, costs, rules

LARGE = Machine(16, 64 * GIB)
SMALL = Machine(2, 16 * GIB)


def space(machine: Machine = LARGE, *, of_job: dict[str, Any] | None = None, **changed: Any) -> Space:
    return Space(costs(**changed), rules(**(of_job or {})), machine)


def predicted(where: Space, layout: Layout, machines: int) -> Prediction:
    prediction = where.predict(layout, machines)
    assert prediction is not None
    return prediction


def by_brute_force(where: Space, machines: int, target: float | None = None) -> PlannedLayout | None:
    """Predict every layout; of those that are fast enough take the first in order."""
    all_of_them: list[tuple[Layout, Prediction]] = []
    for layout in where.layouts(machines):
        prediction = where.predict(layout, machines)
        if prediction is not None:
            all_of_them.append((layout, prediction))
    best = max((prediction.examples_per_second for _, prediction in all_of_them), default=0.0)
    enough = best * (1 - SLACK) if target is None else target
    found = [entry for entry in all_of_them if entry[1].examples_per_second >= enough > 0.0]
    if not found:
        return None
    layout, prediction = min(found, key=lambda entry: entry[0])
    return PlannedLayout(layout, prediction, machines)


@settings(max_examples=10, deadline=None)
@given(
    step=st.floats(0.002, 0.05),
    locked=st.floats(0.0, 0.5),
    parser=st.floats(1e-6, 30e-6),
    shard=st.floats(1e-6, 30e-6),
    cores=st.integers(1, 2),
    machines=st.integers(1, 2),
    memory=st.sampled_from([0.8, 1.6, 3.0, 16.0]),
    nic=st.sampled_from([None, 2e7, 1e9]),
    share=st.sampled_from([None, 0.5, 0.9]),
)
def test_the_search_agrees_with_brute_force(
    step: float,
    locked: float,
    parser: float,
    shard: float,
    cores: int,
    machines: int,
    memory: float,
    nic: float | None,
    share: float | None,
) -> None:
    where = space(
        Machine(cores, memory * GIB, nic, 1e-4),
        step_seconds=step,
        locked_seconds=step * locked,
        trainer_seconds=step / 500 * 1.1,
        parser_seconds=parser,
        reader_seconds=parser * 1.2,
        shard_seconds=shard,
        embedding_seconds=shard * 1.2,
    )
    wanted = by_brute_force(where, machines)
    target = wanted.prediction.examples_per_second * share if wanted is not None and share else None
    if target is not None:
        wanted = by_brute_force(where, machines, target)
    found = best_layout(where, machines, target)
    assert (found is None) == (wanted is None)
    if found is not None and wanted is not None:
        assert found.layout == wanted.layout
        assert found.prediction.examples_per_second == wanted.prediction.examples_per_second


def test_a_search_that_prunes_too_early_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a bound that is too low loses the best layout."""
    where = space(SMALL)
    wanted = by_brute_force(where, 2)
    assert wanted is not None
    assert wanted.layout.trainers * wanted.layout.workers > 1
    monkeypatch.setattr(
        search, "rate_bound", lambda layout, *_: 1e9 if layout.trainers * layout.workers == 1 else 1.0
    )
    lost = best_layout(where, 2)
    assert lost is not None
    assert lost.prediction.examples_per_second < 0.6 * wanted.prediction.examples_per_second


def test_more_machines_are_faster_and_the_fewest_are_chosen() -> None:
    where = space(SMALL)
    rates = [plan_for_machines(where, machines).prediction.examples_per_second for machines in (1, 2, 4)]
    assert rates == sorted(rates)
    assert rates[2] == pytest.approx(4 * rates[0], rel=0.1)
    found = plan_for_target(where, 0.9 * rates[1])
    assert found.machines == 2
    assert found.prediction.examples_per_second >= 0.9 * rates[1]
    assert best_layout(where, 1, 0.9 * rates[1]) is None


@pytest.mark.parametrize(
    ("changed", "machine", "bottleneck"),
    [
        ({}, SMALL, CORES),
        ({"nic_bytes_per_second": 2e7}, SMALL, NETWORK),
    ],
)
def test_the_bottleneck_is_what_was_made_scarce(
    changed: dict[str, Any], machine: Machine, bottleneck: str
) -> None:
    scarce = Machine(machine.cores, machine.memory_bytes, **changed)
    found = plan_for_machines(space(scarce), 3)
    assert found.prediction.limits[0][0] == bottleneck


def test_each_station_limits_a_layout_that_has_too_few_of_it() -> None:
    where = space(shard_seconds=10e-6, parser_seconds=8e-6)
    enough = Layout(8, 2, 8, 1, 4, 1)
    rates = {
        WORKERS: predicted(where, Layout(1, 1, 8, 1, 4, 1), 4),
        EMBEDDING: predicted(where, Layout(8, 2, 1, 1, 4, 1), 4),
        READERS: predicted(where, Layout(8, 2, 8, 1, 1, 1), 4),
    }
    whole = predicted(where, enough, 4)
    for station, prediction in rates.items():
        assert prediction.limits[0][0] == station
        assert prediction.examples_per_second < 0.6 * whole.examples_per_second
    assert rates[READERS].examples_per_second == pytest.approx(1 / 8e-6)


def test_the_gap_follows_the_duty_cycle_until_the_center_is_full() -> None:
    """A period of 0.002 / 0.01 = 0.2 s; with 1 ms of work a round the center serves 1,000 rounds/s."""
    few = predicted(space(), Layout(10, 2, 8, 1, 4, 1), 8)
    many = predicted(space(center_seconds=0.05), Layout(10, 2, 8, 1, 4, 1), 8)
    assert few.round_period_seconds == pytest.approx(0.2, rel=1e-6)
    iterations = few.examples_per_second / (10 * 500)
    assert few.sync_gap == pytest.approx(0.2 * iterations)
    assert many.round_period_seconds == pytest.approx(0.5, rel=0.02), "10 trainers, 50 ms each"
    wanted = predicted(space(of_job={"gap": 100}), Layout(10, 2, 8, 1, 4, 1), 8)
    assert wanted.sync_gap == pytest.approx(100, rel=1e-3)


@pytest.mark.parametrize("cores", [1, 2])
def test_rounds_on_full_cores_come_more_rarely(cores: int) -> None:
    """They get their share of the cores as all work does, and do not leave the workers what remains.

    Of a round 5 ms are computed, and 2 ms count for its duty cycle: at 0.4 of two trainers that would be two
    whole cores.
    """
    machine = Machine(cores, 16 * GIB)
    layout = Layout(2, 1, 1, 1, 1, 1)
    duties = (0.01, 0.1, 0.2, 0.4, 1.0)
    found = [predicted(space(machine, of_job={"duty": duty}), layout, 1) for duty in duties]
    rates = [prediction.examples_per_second for prediction in found]
    without = predicted(space(machine, of_job={"synchronizes": False}), layout, 1)
    assert without.examples_per_second > rates[0]
    # From some duty on a trainer's rounds follow each other without a pause.
    assert rates == pytest.approx(sorted(rates, reverse=True), rel=1e-4)
    assert rates[2] < 0.9 * rates[0]
    assert rates[-1] > 0.25 * rates[0], "training goes on"
    assert found[-1].round_period_seconds is not None
    assert found[-1].round_period_seconds > 0.005, "the duty cycle alone would allow 2 ms"


def test_at_a_fixed_rate_workers_wait_for_their_rounds() -> None:
    fixed = {"fixed": True, "every": 5}
    free = predicted(space(), Layout(4, 1, 8, 1, 4, 1), 8)
    slow = predicted(space(of_job=fixed, round_seconds=0.1), Layout(4, 1, 8, 1, 4, 1), 8)
    assert slow.sync_gap == 5.0
    assert slow.examples_per_second < 0.4 * free.examples_per_second


def test_tables_are_spread_over_as_many_nodes_as_memory_needs() -> None:
    where = space(Machine(1, 8 * GIB), rows_bytes=40 * GIB)
    with pytest.raises(ResourceError, match=r"^--machine: the job needs at least .*, 42.9 GB of it for rows"):
        plan_for_machines(where, 4)
    found = plan_for_machines(where, 8)
    layout = found.layout
    assert layout.embedding_nodes >= 6
    placement = place(layout, where.demands, where.machine, 8, 1e5)
    assert placement is not None
    memory = memory_of(layout, where.demands)
    nodes = (placement.trainers, placement.embedding_nodes, placement.readers, placement.sync_nodes)
    on_each = np.stack((*nodes, placement.coordinators)).T @ np.array(memory)
    assert on_each.shape == (8,)
    assert on_each.max() <= 8 * GIB


def test_a_target_beyond_the_coordinator_is_refused() -> None:
    with pytest.raises(JobFileError, match=r"coordinator can account for 2,000,000 in batches of 500; raise"):
        plan_for_target(space(), 3e6)


def test_counts_are_dense_at_first_and_end_with_the_most() -> None:
    assert list(counts(5)) == [1, 2, 3, 4, 5]
    found = list(counts(1000))
    assert found[:16] == list(range(1, 17))
    assert found[-1] == 1000
    assert all(after <= max(before + 1, before * 1.25) for before, after in pairwise(found))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"lookups_ahead": 1, "credit": 4}, 2),
        ({"lookups_ahead": 9, "credit": 4}, 5),
        ({"lookups_ahead": None, "credit": None}, 11),
        ({"lookups_ahead": None, "credit": 4}, 5),
    ],
)
def test_batches_in_flight_are_given_or_hide_the_delay(changed: dict[str, Any], expected: int) -> None:
    assert rules(**changed).in_flight(delay_seconds=0.1, step_seconds=0.01) == expected
    assert rules(lookups_ahead=None, credit=None).in_flight(delay_seconds=0.0, step_seconds=0.01) == 2
