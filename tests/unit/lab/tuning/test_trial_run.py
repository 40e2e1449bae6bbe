"""When a job has reached a rung, and its NE there, from its statuses."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from shadowsync.lab.tuning import trial_run
from shadowsync.lab.tuning.trial_run import RungWatcher, run_supervised, score_of
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import ExitCode
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
    assert score_of(make_report(eval=last.model_copy(update={"ne": 0.7}), eval_last=last)) == 0.7
    # The controls: without a best checkpoint, and without held-out data.
    assert score_of(make_report(0.8)) == 0.8
    assert score_of(make_report(eval=None)) == 0.9


class Supervisor:
    """A job of three statuses; counts the interrupts."""

    interrupts = 0
    folder = None

    def __init__(self, _job: Job, progress: Callable[[dict[str, Any]], None], *_: Any, **__: Any) -> None:
        Supervisor.interrupts = 0
        self._progress = progress

    async def run(self) -> tuple[ExitCode, str, None]:
        for at in range(3):
            self._progress({"at": at})
        return ExitCode.INTERRUPTED, "interrupted", None

    def interrupt(self) -> None:
        Supervisor.interrupts += 1


@pytest.fixture
def a_job(monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(trial_run, "Supervisor", Supervisor)
    monkeypatch.setattr(trial_run, "make_starter", lambda: SimpleNamespace(close=lambda: None))
    return Job.model_validate({"data": {"format": "criteo_tsv", "path": ["part.tsv"]}})


@pytest.mark.parametrize("raised", [SystemExit(0), ValueError("of the caller")])
def test_an_exception_of_the_caller_ends_the_job_at_once_and_is_raised_then(
    a_job: Job, raised: BaseException
) -> None:
    seen: list[int] = []

    def look(status: dict[str, Any]) -> bool:
        seen.append(status["at"])
        raise raised

    with pytest.raises(type(raised)) as caught:
        run_supervised(a_job, look)
    assert caught.value is raised
    assert seen == [0], "it is not asked again"
    assert Supervisor.interrupts == 2, "the second one leaves no time for a checkpoint"


@pytest.mark.parametrize(("stops_at", "interrupts"), [(1, 1), (9, 0)])
def test_a_job_that_is_to_stop_is_interrupted_once(a_job: Job, stops_at: int, interrupts: int) -> None:
    code, text, _, _ = run_supervised(a_job, lambda status: bool(status["at"] >= stops_at))
    assert (code, text) == (ExitCode.INTERRUPTED, "interrupted")
    assert Supervisor.interrupts == interrupts
