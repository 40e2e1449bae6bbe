"""When a job has reached a rung, from its statuses."""

from __future__ import annotations

from typing import Any

from shadowsync.lab.tuning.trial_run import RungWatcher


def status(distinct: int, ne: float | None, total: int | None = 900) -> dict[str, Any]:
    return {"progress": {"distinct": distinct, "total": total}, "quality": {"ne_recent": ne}}


def test_each_rung_is_reported_once_when_it_is_reached() -> None:
    told: list[tuple[int, float]] = []
    watcher = RungWatcher([1 / 9, 1 / 3], lambda rung, ne: bool(told.append((rung, ne))))
    for distinct, ne in ((0, None), (99, 1.0), (100, 0.9), (200, 0.8), (300, 0.7), (900, 0.6)):
        assert not watcher.is_to_stop(status(distinct, ne))
    assert told == [(0, 0.9), (1, 0.7)]


def test_a_rung_waits_for_a_score_and_a_size() -> None:
    told: list[int] = []
    watcher = RungWatcher([1 / 9], lambda rung, _ne: bool(told.append(rung)))
    for one in (status(500, None), status(500, float("nan")), status(500, 0.8, total=None)):
        assert not watcher.is_to_stop(one)
    assert told == []
    watcher.is_to_stop(status(500, 0.8))
    assert told == [0]


def test_a_trial_that_the_study_stops_reports_nothing_more() -> None:
    told: list[int] = []

    def stop(rung: int, _ne: float) -> bool:
        told.append(rung)
        return rung == 1

    watcher = RungWatcher([1 / 9, 1 / 3, 1 / 2], stop)
    assert not watcher.is_to_stop(status(100, 0.9))
    assert watcher.is_to_stop(status(900, 0.9))
    assert watcher.is_to_stop(status(900, 0.9))
    assert told == [0, 1]
    assert watcher.stopped
