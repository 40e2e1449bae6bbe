"""When a job has reached a rung, and its NE there, from its statuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shadowsync.lab.tuning.trial_run import RungWatcher, score_of
from shadowsync.pipeline.report.model import Report

CURVE = [(50, 1.0), (100, 0.9), (150, 0.85), (300, 0.7), (350, 0.6)]


class Told:
    """What the watcher reported; stops nothing."""

    def __init__(self) -> None:
        self.rungs: list[tuple[int, float]] = []

    def __call__(self, rung: int, ne: float) -> bool:
        self.rungs.append((rung, ne))
        return False


def status(points: int, total: int | None = 900) -> dict[str, Any]:
    """A status when the curve has so many points."""
    curve = {"step": 50.0, "start": 0, "points": [list(point) for point in CURVE[:points]]}
    return {"progress": {"total": total}, "curves": {"ne": curve} if points else {}}


def test_each_rung_is_reported_once_with_the_first_full_point_behind_it() -> None:
    told = Told()
    watcher = RungWatcher([1 / 9, 1 / 3], told)
    for points in range(6):
        assert not watcher.is_to_stop(status(points))
        # The point at 100 may still change while it is the last one.
        assert len(told.rungs) == (0 if points < 3 else 1 if points < 5 else 2)
    assert told.rungs == [(0, 0.9), (1, 0.7)]


def test_a_late_status_gives_the_same_figures() -> None:
    told = Told()
    RungWatcher([1 / 9, 1 / 3], told).is_to_stop(status(5))
    assert told.rungs == [(0, 0.9), (1, 0.7)]


def test_a_rung_waits_for_the_size_of_the_input() -> None:
    told = Told()
    watcher = RungWatcher([1 / 9], told)
    assert not watcher.is_to_stop(status(5, total=None))
    assert told.rungs == []
    watcher.is_to_stop(status(5))
    assert told.rungs == [(0, 0.9)]


def test_a_trial_that_the_study_stops_reports_nothing_more() -> None:
    told: list[int] = []

    def stop(rung: int, _ne: float) -> bool:
        told.append(rung)
        return rung == 1

    watcher = RungWatcher([1 / 9, 1 / 6, 1 / 3], stop)
    assert not watcher.is_to_stop(status(3))
    assert watcher.is_to_stop(status(5))
    assert watcher.is_to_stop(status(5))
    assert told == [0, 1]
    assert watcher.stopped


def test_a_trial_is_scored_by_its_best_checkpoint(make_report: Callable[..., Report]) -> None:
    last = make_report(0.8).eval
    assert last is not None
    assert score_of(make_report(0.8, eval_best=last.model_copy(update={"ne": 0.7}))) == 0.7
    # The controls: without a best checkpoint, and without held-out data.
    assert score_of(make_report(0.8)) == 0.8
    assert score_of(make_report(eval=None)) == 0.9
