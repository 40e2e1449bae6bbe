"""What a job as a trainable of Ray Tune reports, without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from shadowsync.lab.tuning import ray_trainable
from shadowsync.lab.tuning.ray_trainable import train_trial
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import ExitCode, JobFileError, ShadowSyncError

FINISHED = SimpleNamespace(
    headline=SimpleNamespace(ne=0.75),
    train=SimpleNamespace(ne_progressive=0.8),
    examples=SimpleNamespace(distinct=900),
)


def a_job() -> Job:
    return Job.model_validate({"data": {"format": "criteo_tsv", "path": ["part.tsv"]}})


def status(distinct: int, ne: float | None, total: int | None = 900) -> dict[str, Any]:
    return {"progress": {"distinct": distinct, "total": total}, "quality": {"ne_recent": ne}}


def runs(code: ExitCode, report: object, jobs: list[Job]) -> Callable[..., Any]:
    """A job of six statuses."""

    def run(job: Job, is_to_stop: Callable[[dict[str, Any]], bool]) -> tuple[Any, ...]:
        jobs.append(job)
        early = (status(0, None, None), status(100, 0.9, None), status(100, 0.9), status(500, 0.8))
        for one in (*early, status(600, float("nan")), status(900, 0.7)):
            assert not is_to_stop(one)
        return code, "the node died" if code else "", report, None

    return run


def test_the_ne_is_reported_as_it_trains_and_the_score_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[dict[str, Any]] = []
    jobs: list[Job] = []
    monkeypatch.setattr(ray_trainable, "run_supervised", runs(ExitCode.OK, FINISHED, jobs))
    train_trial(a_job(), {"sync.gap": 7, "trainer.lr": 0.5}, told.append, tmp_path)
    # Not 0.7 of the last batches: a scheduler would take the trial for complete with that.
    assert [(one["examples"], one["ne"], one.get("score"), one["scored"]) for one in told] == [
        (100, 0.9, None, False),
        (500, 0.8, None, False),
        (900, 0.75, 0.75, True),
    ]
    assert (jobs[0].sync.gap, jobs[0].trainer.lr, jobs[0].run.directory) == (7, 0.5, str(tmp_path))


def test_a_trial_that_fails_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(ray_trainable, "run_supervised", runs(ExitCode.STOPPED_BY_DEATH, None, []))
    with pytest.raises(ShadowSyncError, match="the node died"):
        train_trial(a_job(), {}, told.append, tmp_path)
    assert not any(one["scored"] for one in told)
    with pytest.raises(JobFileError, match="workers"):
        train_trial(a_job(), {"trainer.workers": 0}, told.append, tmp_path)


@pytest.mark.parametrize(
    ("data", "run", "said"),
    [
        ({"follow": True}, {}, "data.follow: true given"),
        ({}, {"storage": "s3://bucket/runs"}, "run.storage = s3://bucket/runs given"),
    ],
)
def test_jobs_whose_trials_would_not_end_or_would_meet_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: dict[str, Any], run: dict[str, Any], said: str
) -> None:
    base = a_job().model_dump(by_alias=True)
    base["data"] |= data
    base["run"] |= run
    monkeypatch.setattr(ray_trainable, "load_job", lambda _: Job.model_validate(base))
    with pytest.raises(JobFileError, match=said):
        ray_trainable.trainable(tmp_path / "job.toml")
