"""Data parallelism under deaths, against its closed form and in its limits."""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import Any

import pytest
from shadowsync.lab.simulation.data_parallel import expected_goodput, simulate_data_parallel
from shadowsync.lab.simulation.setting import Setting
from shadowsync.lab.simulation.simulate import simulate
from shadowsync.lab.simulation.sweep import Sweep, assumptions, sweep_table

COSTS: dict[str, Any] = {
    "step_seconds": 0.02,
    "round_cpu_seconds": 0.002,
    "model_bytes": 1e6,
    "link_bytes_per_second": 1e9,
}


def of(**changed: Any) -> Setting:
    return Setting(
        **(COSTS | {"trainers": 100, "detection_seconds": 10.0, "recovery_seconds": 50.0} | changed)
    )


@pytest.mark.parametrize(
    ("deaths_an_hour", "checkpoint_seconds"),
    [(0.01, 10.0), (0.01, 300.0), (0.1, 10.0), (0.1, 300.0), (0.5, 10.0), (1.0, 10.0)],
)
def test_it_has_the_goodput_of_the_closed_form(deaths_an_hour: float, checkpoint_seconds: float) -> None:
    """Means of 20 seeds, each of 400 deaths or more."""
    settings = [
        of(deaths_an_hour=deaths_an_hour, checkpoint_seconds=checkpoint_seconds, seed=seed)
        for seed in range(20)
    ]
    found = [simulate_data_parallel(setting) for setting in settings]
    assert min(point.deaths for point in found) > 300
    shares = [point.goodput for point in found]
    four_errors = 4 * stdev(shares) / math.sqrt(len(shares))
    assert abs(fmean(shares) - expected_goodput(settings[0])) <= four_errors
    assert {point.expected_goodput for point in found} == {expected_goodput(settings[0])}
    # The control: half of the time that all are stopped.
    sooner = of(deaths_an_hour=deaths_an_hour, checkpoint_seconds=checkpoint_seconds, recovery_seconds=20.0)
    assert abs(fmean(shares) - expected_goodput(sooner)) > four_errors


def test_few_deaths_cost_their_stop_and_half_the_time_between_checkpoints() -> None:
    setting = of(deaths_an_hour=0.001, checkpoint_seconds=100.0)
    rate = 100 * 0.001 / 3600
    assert expected_goodput(setting) == pytest.approx(1 - rate * (60 + 100 / 2), abs=1e-4)


def test_many_deaths_leave_nothing() -> None:
    setting = of(trainers=10_000, deaths_an_hour=1.0)
    rate = 10_000 / 3600
    assert expected_goodput(setting) == pytest.approx(0.0, abs=math.exp(-rate * 60))
    assert simulate_data_parallel(setting).goodput == 0.0
    assert simulate_data_parallel(of()).goodput == expected_goodput(of()) == 1.0, "the control: no deaths"


def test_trainers_that_wait_for_nobody_lose_their_own_time_only() -> None:
    """60 trainers that each die after 20 minutes of training, and are out for one."""
    setting = of(trainers=60, deaths_an_hour=3.0, duty=0.0005, seconds=400.0)
    point = simulate(setting)
    assert point.data_parallel is not None
    assert point.goodput == pytest.approx(20 / 21, abs=0.02)
    assert point.data_parallel.goodput < 0.1, "of all trainers one dies every 20 s"
    table = sweep_table(Sweep(source="here", series={"1 sync node": [point]}))
    assert f"| {point.goodput:.3f} | 0.0" in table[2]
    (first, *_) = assumptions(setting)
    assert first.startswith("assumed: each trainer dies every 20 min in the mean")
    assert assumptions(of()) == []
