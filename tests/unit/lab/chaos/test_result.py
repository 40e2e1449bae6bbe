"""What a chaos run adds up of its jobs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import pytest
from shadowsync.commands.lab.chaos import chaos, show_result
from shadowsync.lab.chaos import faulted_job, run
from shadowsync.lab.chaos.due_faults import FaultsOfJob
from shadowsync.lab.chaos.faulted_job import FaultedJob, InjectedFault, JobRunner, Progress
from shadowsync.lab.chaos.run import (
    FEWEST_CLEAN,
    ChaosPlan,
    ChaosResult,
    clean_jobs_before,
    count_job,
    job_problems,
)
from shadowsync.lab.chaos.schedule import ScheduledFault

KILLED = ScheduledFault("kill", "embedding", 0, 0.5)
STOPPED = ScheduledFault("stop", "embedding", 1, 0.5, seconds=2.0)


def test_faults_are_counted_by_kind_and_jobs_that_went_on_by_it() -> None:
    result = ChaosResult()
    count_job(result, "one", FaultedJob(injected=[InjectedFault(KILLED, 1.0)], exit_codes=[6, 0]), [])
    count_job(
        result,
        "two",
        FaultedJob(injected=[InjectedFault(STOPPED, 1.0)], missed=[KILLED], exit_codes=[5]),
        ["it hung"],
    )
    assert result.injected == {"embedding killed": 1, "embedding stopped": 1}
    assert (result.resumed("embedding killed"), result.resumed("embedding stopped")) == (1, 0)
    assert result.missed == 1
    assert result.exit_codes == {6: 1, 0: 1, 5: 1}
    assert result.problems == ["two: it hung"]
    assert result.jobs[0]["injected"] == [asdict(KILLED)]


def test_quality_is_beside_that_of_clean_jobs() -> None:
    result = ChaosResult(clean_ne=[0.80, 0.82, 0.81, 0.80, 0.82], faulted_ne=[0.82, 0.80, 0.81])
    assert result.ne_difference == pytest.approx(0.0)
    assert result.far() == []
    result.faulted_ne.append(0.95)
    assert result.far() == [0.95]
    assert result.ne_difference == pytest.approx(0.845 / 0.81 - 1)
    assert ChaosResult(clean_ne=[0.8]).ne_difference is None


def test_few_clean_jobs_judge_no_other() -> None:
    few = ChaosResult(clean_ne=[0.80, 0.8001, 0.80, 0.8001], faulted_ne=[0.95])
    assert not few.far_is_known
    assert few.far() == []
    few.clean_ne.append(0.80)
    assert few.far() == [0.95], "the control"


def test_jobs_are_judged_by_default_and_it_is_said_where_they_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (option,) = (one for one in chaos.params if one.name == "clean_runs")
    assert option.default == ChaosPlan(faults=1, seed=1).clean_runs == FEWEST_CLEAN

    def said(clean_runs: int) -> str:
        clean_ne = [0.8 + 0.01 * number for number in range(clean_runs)]
        show_result(ChaosResult(clean_ne=clean_ne, faulted_ne=[0.8]))
        return capsys.readouterr().out

    lines: list[str] = []
    job = Mock(expected={}, run=Mock(start_timeout_seconds=1.0))
    monkeypatch.setattr(run, "JobRunner", Mock(side_effect=InterruptedError))
    monkeypatch.setattr(run, "files_of", lambda _: 1)
    for clean_runs in (1, FEWEST_CLEAN):
        plan = ChaosPlan(faults=1, seed=1, clean_runs=clean_runs)
        with pytest.raises(InterruptedError):
            run.run_chaos(job, ["job.toml"], tmp_path, plan, lines.append)
    (first,) = lines
    assert first.startswith(
        "no job is judged by its NE: 1 job without faults to compare with, and it takes 5"
    )
    assert "--clean-runs 5" in first
    assert first in said(1)
    assert "0 jobs differ by more than 5 standard deviations" in said(FEWEST_CLEAN)
    assert "none was scored" in said(0)


@pytest.mark.parametrize(
    ("first_batch_at", "stands_still_at", "ends_at", "hung"),
    [(170.0, 1e9, 200.0, False), (1e9, 1e9, 300.0, True), (5.0, 1e9, 50.0, False), (5.0, 20.0, 100.0, True)],
    ids=["slow start", "no start", "usual", "hang"],
)
def test_a_slow_start_is_no_hang(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first_batch_at: float,
    stands_still_at: float,
    ends_at: float,
    *,
    hung: bool,
) -> None:
    """Of a job that has 120 s to start; afterwards it may stand still for 60 s."""
    now, killed = [0.0], list[float]()

    def sleep(_: float) -> None:
        now[0] += 1.0

    process, injector = Mock(), Mock(active=False)
    process.poll = lambda: 0 if killed or now[0] >= ends_at else None
    process.kill = lambda: killed.append(now[0])
    trained = lambda _: Progress(acknowledgements=max(0, int(min(now[0], stands_still_at) - first_batch_at)))  # noqa: E731
    (tmp_path / "runs" / "one").mkdir(parents=True)
    monkeypatch.setattr(faulted_job, "progress_of", trained)
    monkeypatch.setattr(faulted_job, "time", Mock(monotonic=lambda: now[0], sleep=sleep))
    done = FaultedJob()
    run = faulted_job._WatchedRun(injector, FaultsOfJob((), 0), done, faulted_job._Clock())
    JobRunner([], {}, tmp_path, 60.0, 120.0)._watch(process, run, set())
    assert (done.hung, bool(killed)) == (hung, hung)


def test_a_job_that_hung_left_processes_or_ended_badly_has_problems(tmp_path: Path) -> None:
    done = FaultedJob(
        exit_codes=[6, 6], hung=True, left=2, last_line="the last trainer died", folder=tmp_path
    )
    assert job_problems(done, 10) == [
        "it hung",
        "it left 2 processes",
        "it ended with 6: the last trainer died",
    ]
    assert job_problems(FaultedJob(exit_codes=[0]), 10) == ["it has no folder"]


def test_clean_jobs_come_between_the_others() -> None:
    before = [clean_jobs_before(number, 6, 4) for number in range(7)]
    assert before == [1, 1, 2, 2, 3, 3, 4]
    assert [clean_jobs_before(number, 3, 1) for number in range(4)] == [1] * 4
    # As many clean jobs as others, or more.
    assert clean_jobs_before(0, 1, 5) == 1
    assert clean_jobs_before(1, 1, 5) == 5
