"""The figures of a soak: what is useful, and how fast it comes beside jobs without faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shadowsync.lab.chaos.faulted_job import FaultedJob, InjectedFault
from shadowsync.lab.chaos.goodput import (
    Stretch,
    cpu_seconds_per_million,
    goodput,
    speeds_after,
    stretch_of,
    useful_per_second,
)
from shadowsync.lab.chaos.schedule import ScheduledFault
from shadowsync.lab.chaos.soak import SoakPlan, SoakResult, clean_jobs_by, too_short

CLEAN = Stretch(1000, 0, 0, seconds=10.0, cpu_seconds=2.0)
KILL = ScheduledFault("kill", "trainer", 0, None)
STOP = ScheduledFault("stop", "reader", 0, None, seconds=2.0)


def _folder(path: Path, distinct: int, trained: int, lost: int, restored: int = 0) -> Path:
    path.mkdir()
    report: dict[str, Any] = {
        "examples": {"distinct": distinct, "trained": trained},
        "restored_examples": restored,
        "ledger": {"lost_dense_updates": lost},
    }
    (path / "report.json").write_text(json.dumps(report), "utf-8")
    return path


def test_what_is_lost_or_trained_again_is_not_useful() -> None:
    faulted = [Stretch(1000, 300, 50, seconds=10.0, cpu_seconds=4.0), Stretch(1000, 0, 0, 15.0, 2.0)]
    assert useful_per_second(faulted) == pytest.approx(1950 / 25)
    assert goodput(faulted, [CLEAN, CLEAN]) == pytest.approx(0.78)
    assert goodput([CLEAN], [CLEAN]) == 1.0, "the control"
    assert cpu_seconds_per_million(faulted) == pytest.approx(6.0 / 1950 * 1e6)
    assert Stretch(10, 0, 20, 1.0, 1.0).useful_examples == 0


def test_without_jobs_there_is_no_figure() -> None:
    assert goodput([], [CLEAN]) is None
    assert goodput([CLEAN], []) is None
    assert goodput([CLEAN], [Stretch(0, 0, 0, 0.0, 0.0)]) is None
    assert cpu_seconds_per_million([]) is None


def test_examples_of_a_resumed_job_count_once(tmp_path: Path) -> None:
    """600 were trained, 500 of them are in the checkpoint, and 520 after it, 20 of them again."""
    folders = [_folder(tmp_path / "a", 600, 600, 2), _folder(tmp_path / "b", 500, 520, 1, restored=500)]
    done = FaultedJob(folder=folders[-1], folders=folders, trained_seconds=30.0, cpu_seconds=5.0)
    assert stretch_of(done, batch=8) == Stretch(1000, 120, 24, 30.0, 5.0)


def test_a_job_without_a_model_has_nothing_useful(tmp_path: Path) -> None:
    first = _folder(tmp_path / "a", 600, 600, 0)
    (tmp_path / "b").mkdir()
    done = FaultedJob(folder=tmp_path / "b", folders=[first, tmp_path / "b"], trained_seconds=3.0)
    assert stretch_of(done, batch=8) == Stretch(0, 600, 0, 3.0, 0.0)
    assert stretch_of(FaultedJob(), batch=8) == Stretch(0, 0, 0, 0.0, 0.0)


def test_the_speed_after_a_fault_lasts_until_the_next_one_or_the_end_of_the_run() -> None:
    done = FaultedJob(
        injected=[
            InjectedFault(KILL, 12.0, 10.0, 1000),
            InjectedFault(STOP, 22.0, 20.0, 1800),
            InjectedFault(KILL, 4.0, 40.0, 300),
        ],
        run_ends=[(25.0, 2400), (50.0, 1300)],
    )
    assert speeds_after(done) == [
        ("trainer killed", 10.0, 800),
        ("reader stopped", 5.0, 600),
        ("trainer killed", 10.0, 1000),
    ]


def test_the_speed_after_faults_of_a_label_is_beside_that_without() -> None:
    result = SoakResult(clean=[CLEAN], speeds={"trainer killed": [(10.0, 800), (10.0, 1000)]})
    assert result.speed_after("trainer killed") == pytest.approx(0.9)
    assert result.speed_after("reader killed") is None


def test_jobs_without_faults_come_before_between_and_after() -> None:
    plan = SoakPlan(every_seconds=15.0, for_seconds=600.0, seed=1, clean_runs=3)
    by = [clean_jobs_by(seconds, plan) for seconds in (0.0, 299.0, 300.0, 599.0, 600.0, 900.0)]
    assert by == [1, 1, 2, 2, 3, 3]
    assert clean_jobs_by(900.0, SoakPlan(every_seconds=15.0, for_seconds=600.0, seed=1, clean_runs=1)) == 1


def test_a_job_that_is_too_short_for_the_faults_is_said() -> None:
    assert "a job trains for 59 s only, and a fault comes every 15 s" in too_short(59.0, 15.0)
    assert too_short(60.0, 15.0) == ""
