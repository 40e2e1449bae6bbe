"""Simulated synchronization, against closed forms and against what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from shadowsync.benchmarks.speed.machines.simulated_scaling import GAP_GOAL, STEPS_GOAL, compared
from shadowsync.lab.capacity.queueing import paced_cycle_seconds
from shadowsync.lab.simulation.setting import FRAME_PAYLOAD, Setting
from shadowsync.lab.simulation.simulate import (
    LINK,
    MESSAGES,
    NO_ROUND,
    PACE,
    SERVICE,
    SimulatedPoint,
    simulate,
)
from shadowsync.lab.simulation.sweep import (
    JSON_NAME,
    PICTURE_NAME,
    Sweep,
    draw_sweep,
    parse_settings,
    sweep_table,
    with_window,
)
from shadowsync.pipeline.errors import JobFileError

# A round: 2 ms of CPU, so one every 0.2 s; 10 ms on the link in each direction.
COSTS: dict[str, Any] = {
    "step_seconds": 0.02,
    "round_cpu_seconds": 0.002,
    "model_bytes": 1e6 * FRAME_PAYLOAD,
    "link_bytes_per_second": 1e8,
    "warm_seconds": 5.0,
    "seconds": 40.0,
    "start_seconds": 0.2,
}


def of(**changed: Any) -> SimulatedPoint:
    return simulate(Setting(**(COSTS | changed)))


def test_a_trainer_alone() -> None:
    found = of()
    assert found.steps_per_second == pytest.approx(50.0)
    assert found.round_seconds == pytest.approx(0.022), "its CPU, and the slice both ways"
    assert found.rounds_per_second == pytest.approx(5.0, rel=0.01)
    assert found.gap == pytest.approx(10.0, rel=0.01)
    assert found.bytes_per_second == pytest.approx(2 * 5 * COSTS["model_bytes"], rel=0.01)
    assert found.limit == PACE
    assert of(delay_seconds=0.05).round_seconds == pytest.approx(0.122), "one delay each way"


def test_several_sync_nodes_take_slices_at_once() -> None:
    assert of(sync_nodes=2).round_seconds == pytest.approx(0.012)
    assert of(sync_nodes=2, message_cpu_seconds=0.001).round_seconds == pytest.approx(0.003 + 0.010 + 0.001)


@pytest.mark.parametrize("trainers", [5, 10, 30, 80])
def test_a_full_link_sets_the_pace_from_n_on(trainers: int) -> None:
    """At n* = 0.2 s / 10 ms = 20 trainers the link is full; beyond it the gap grows with n."""
    found = of(trainers=trainers)
    assert found.steps_per_second == pytest.approx(50.0 * trainers, rel=1e-6), "training never waits"
    period = found.gap * 0.02 if found.gap is not None else 0.0
    least = max(0.2, trainers * 0.01)
    most = paced_cycle_seconds([0.01, 0.01], trainers, 0.002, 0.2)
    assert least * 0.99 <= period <= most * 1.05
    assert (found.limit == LINK) == (trainers > 20)


def test_the_wait_for_the_center_is_below_that_of_random_arrivals() -> None:
    """M/D/1: at a load of 0.8, 2 service times of waiting; trainers that keep their pace wait less."""
    service = 0.01
    work = {"link_bytes_per_second": 1e15, "center_seconds_per_byte": service / COSTS["model_bytes"]}
    found = of(trainers=16, **work)
    assert found.round_seconds is not None
    waiting = found.round_seconds - 0.002 - service
    assert 0.0 <= waiting <= service * 0.8 / (2 * 0.2)
    full = of(trainers=60, **work)
    assert full.rounds_per_second == pytest.approx(1 / service, rel=0.01)
    assert full.limit == SERVICE


def test_a_wanted_gap_is_kept_where_the_duty_cycle_allows_it() -> None:
    assert of(gap=30).gap == pytest.approx(30.0, rel=0.04)
    assert of(gap=2).gap == pytest.approx(10.0, rel=0.02)


def test_at_a_fixed_rate_trainers_wait() -> None:
    found = of(mode="fixed", every=5)
    assert found.steps_per_second == pytest.approx(5 / (5 * 0.02 + 0.022), rel=0.01)
    assert found.gap == pytest.approx(5.0, rel=0.01)
    crowded = of(mode="fixed", every=5, trainers=100)
    assert crowded.steps_per_second <= 5 / 0.01 * 1.001
    assert crowded.steps_per_second >= 0.8 * 5 / 0.01, "the link is full"


def test_many_messages_make_rounds_rare() -> None:
    found = of(sync_nodes=64, message_cpu_seconds=0.001, seconds=650.0)
    assert found.gap == pytest.approx((0.002 + 63 * 0.001) / 0.01 / 0.02, rel=0.02)
    assert found.limit == MESSAGES


def test_the_same_seed_gives_the_same_result() -> None:
    crowded = {"trainers": 30, "seconds": 10.0, "deaths_an_hour": 60.0}
    assert of(**crowded) == of(**crowded)
    assert of(**crowded, seed=2).gap != of(**crowded).gap


def test_deaths_cost_their_recovery_and_what_was_not_synchronized() -> None:
    """Each trainer dies every 60 s and is back after 10 s: it trains for 60 of 70 s."""
    found = of(trainers=40, deaths_an_hour=60.0, seconds=200.0, link_bytes_per_second=1e10)
    assert found.steps_per_second == pytest.approx(40 * 50 * 60 / 70, rel=0.06)
    assert found.deaths == pytest.approx(40 * 200 / 70, rel=0.2)
    lost = found.lost_share * found.steps_per_second * 200 / found.deaths
    assert 10 / 2 * 0.7 <= lost <= 10 * 1.5, "between half a gap and one and a half"
    assert of(trainers=4).lost_share == 0.0


def test_a_death_that_is_noticed_late_costs_that_too() -> None:
    late = of(
        trainers=40, deaths_an_hour=60.0, seconds=200.0, link_bytes_per_second=1e10, detection_seconds=10.0
    )
    assert late.steps_per_second == pytest.approx(40 * 50 * 60 / 80, rel=0.06)
    assert late.goodput == pytest.approx(60 / 80, rel=0.08)
    assert of(trainers=4).goodput == pytest.approx(1.0), "the control"


def test_a_center_that_merges_waits_for_nobody() -> None:
    """With deaths the others' merges go on at their pace: the dead are not waited for."""
    merging = {"trainers": 10, "merges": True, "link_bytes_per_second": 1e10, "gap": 10}
    whole = of(**merging, seconds=10.0)
    assert whole.goodput == pytest.approx(1.0)
    assert whole.gap == pytest.approx(10.0, rel=0.1)
    assert whole.merged_share is not None
    assert 0.5 <= whole.merged_share <= 1.0, "a quorum of half"
    dying = of(**merging, deaths_an_hour=120.0, seconds=60.0, detection_seconds=5.0, recovery_seconds=5.0)
    assert dying.deaths > 10
    assert dying.goodput == pytest.approx(30 / 40, rel=0.1), "of 40 s each trains for 30"
    assert dying.gap == pytest.approx(whole.gap or 0.0, rel=0.1)
    assert (dying.merged_share or 0.0) < whole.merged_share
    assert of(seconds=10.0).merged_share is None, "the control: a center without merges"


def test_without_a_sync_node_rounds_wait_and_trainers_do_not() -> None:
    found = of(trainers=8, sync_deaths_an_hour=60.0, seconds=700.0, link_bytes_per_second=1e10)
    assert found.steps_per_second == pytest.approx(8 * 50.0, rel=1e-6)
    assert found.gap == pytest.approx(10.0 * 70 / 60, rel=0.25)


def test_a_tree_has_no_center_to_fill() -> None:
    few, many = (of(trainers=n, site_size=4, site_every=10_000, seconds=20.0) for n in (8, 200))
    on_link = 2 * 3 / 4 * 0.01
    assert few.round_seconds == pytest.approx(0.002 + on_link)
    assert many.gap == pytest.approx(few.gap or 0.0, rel=0.05)
    center = of(trainers=200, seconds=20.0)
    assert center.gap is not None
    assert many.gap is not None
    assert center.gap > 5 * many.gap
    often = of(trainers=200, site_size=4, site_every=1, message_cpu_seconds=0.0001, seconds=20.0)
    assert often.gap is not None
    assert often.gap > 5 * many.gap, "all with all: 398 messages both ways"
    slow = of(trainers=8, site_size=4, site_every=2, site_bytes_per_second=1e6, seconds=20.0)
    assert (slow.round_seconds or 0.0) > 10 * (few.round_seconds or 1.0), "the sites' own links"


def test_measured_trainers_are_found_again() -> None:
    """1 to 32 trainers in the background: steps/s in all 12 cells; the gap behind one sync node."""
    rows = compared(("shadow",))
    assert len(rows) == 12
    assert max(abs(row["steps_error"]) for row in rows) <= STEPS_GOAL
    one = [row for row in rows if row["sync_nodes"] == 1]
    assert max(abs(row["gap_error"]) for row in one) <= GAP_GOAL
    wrong = compared(("shadow",), (1,), link_bytes_per_second=1e9 / 8)
    assert sum(abs(row["gap_error"]) > GAP_GOAL for row in wrong if row["sync_nodes"] == 1) >= 4, (
        "the control"
    )


def test_a_sweep_is_written_with_its_picture(tmp_path: Path) -> None:
    points = [simulate(with_window(Setting(**(COSTS | {"trainers": n})))) for n in (1, 4)]
    sweep = Sweep(source="here", series={"1 sync node": points})
    sweep.write(tmp_path)
    assert Sweep.model_validate_json((tmp_path / JSON_NAME).read_bytes()) == sweep
    assert (tmp_path / PICTURE_NAME).stat().st_size > 5_000
    table = sweep_table(sweep)
    assert len(table) == 4
    assert "| 1 sync node | 4 |" in table[3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sync_nodes", "'sync_nodes' is not KEY=VALUE"),
        ("speed=2", "'speed=2' is not KEY=VALUE of trainers"),
        ("sync_nodes=0", "sync_nodes"),
        ("duty=2", "duty"),
        ("site_size=9", "site_size: 9 given; there are 1 trainers"),
        ("quorum=2", "quorum: 2 given; there are 1 trainers"),
        ("longest_wait_seconds=0", "longest_wait_seconds"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(JobFileError) as refused:
        parse_settings([text], COSTS)
    assert said in str(refused.value)
    assert str(refused.value).startswith("--setting: ")
    assert "Value error" not in str(refused.value)


def test_too_many_trainers_are_refused() -> None:
    with pytest.raises(ValidationError, match="10000"):
        Setting(**COSTS, trainers=10_001)
    assert parse_settings(["sync_nodes=8", "gap=4"], COSTS).gap == 4, "the control"


def test_a_window_in_which_no_round_ends_says_so() -> None:
    found = of(model_bytes=1e12, seconds=1.0, warm_seconds=1.0)
    assert (found.gap, found.limit) == (None, NO_ROUND)


def test_points_without_a_gap_are_drawn_without_one(tmp_path: Path) -> None:
    points = [of(trainers=count, model_bytes=1e12, seconds=1.0, warm_seconds=1.0) for count in (1, 2)]
    draw_sweep({"no round": points}, tmp_path / PICTURE_NAME)
    assert (tmp_path / PICTURE_NAME).stat().st_size > 5_000
