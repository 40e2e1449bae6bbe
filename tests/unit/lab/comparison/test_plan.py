"""What is refused before anything starts, and in which order the runs are made."""

from __future__ import annotations

from pathlib import Path

import pytest
from shadowsync.lab.comparison.plan import check, make_plan
from shadowsync.lab.comparison.variants import REFERENCE, parse_variants
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.pipeline.jobfile.load import load_resolved


def _orders(base: Job, folder: Path, seeds: int) -> list[list[str]]:
    folder.mkdir()
    runs = make_plan(base, parse_variants("a,b,c"), seeds, folder).runs
    return [[run.label for run in runs if run.seed == seed] for seed in range(4, 4 + seeds)]


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Algorithms that need not exist."""
    monkeypatch.setattr(
        "shadowsync.lab.comparison.variants.with_sync_nodes",
        lambda job, may_import: job if may_import else None,
    )


@pytest.mark.usefixtures("plain")
def test_every_seed_has_every_variant_in_another_order(base: Job, tmp_path: Path) -> None:
    assert _orders(base, tmp_path / "c", 4) == [
        [REFERENCE, "a", "b", "c"],
        [REFERENCE, "c", "b", "a"],
        ["b", "c", REFERENCE, "a"],
        ["b", "a", REFERENCE, "c"],
    ]


@pytest.mark.usefixtures("plain")
def test_no_variant_is_always_early(base: Job, tmp_path: Path) -> None:
    """Over as many seeds as there are variants, or twice as many, each has had about the mean place."""
    orders = _orders(base, tmp_path / "c", 8)
    for label in (REFERENCE, "a", "b", "c"):
        assert abs(sum(order.index(label) for order in orders) / 8 - 1.5) <= 0.5
    assert len({tuple(order) for order in orders}) > 3, "the control: one order for all would pass no mean"


def test_each_run_has_a_resolved_job_of_its_own(base: Job, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    comparison = make_plan(base, parse_variants("none,easgd@5,easgd@5"), 2, folder)
    jobs = {run.name: load_resolved(folder / "jobs" / f"{run.name}.json") for run in comparison.runs}
    assert len(jobs) == len(comparison.runs) == 8
    for run in comparison.runs:
        job = jobs[run.name]
        assert (job.run.seed, job.run.name) == (run.seed, run.name)
        assert job.run.directory == str(folder / "runs")
        assert job.trainer.count == (1 if run.label == REFERENCE else 2)
        assert job.sync.mode == ("fixed" if "@" in run.label else "shadow")
    assert [variant.label for variant in comparison.variants] == [REFERENCE, "none", "easgd@5", "easgd@5 (2)"]
    assert [variant.mode for variant in comparison.variants] == ["none", "none", "fixed", "fixed"]


@pytest.mark.parametrize(
    ("algorithms", "said"),
    [
        (
            "none,easdg",
            "--algorithms easdg: sync.algorithm: 'easdg' is not an algorithm; did you mean 'easgd'?",
        ),
        ("easgd:elastic_rate=2", "elastic_rate: 2 given; give a number above 0 and at most 1"),
        ("easgd:elastic=0.5", "sync.options.elastic: unknown option"),
        ("none:a=1", "sync.options.a: unknown option; none has no options"),
    ],
)
def test_what_no_run_could_use(base: Job, algorithms: str, said: str) -> None:
    with pytest.raises(JobFileError) as caught:
        check(base, algorithms, 1)
    assert said in str(caught.value)


def test_a_job_that_no_run_could_use(base: Job) -> None:
    nothing = base.model_copy(update={"sync": base.sync.model_copy(update={"nodes": 0})})
    with pytest.raises(JobFileError, match=r"easgd keeps a center and needs at least 1 sync node"):
        check(nothing, "none,easgd", 1)
    with pytest.raises(DataError, match="/x"):
        check(base, "none,easgd", 1)
    late = base.model_copy(update={"run": base.run.model_copy(update={"seed": 2**31 - 2})})
    with pytest.raises(JobFileError, match="go beyond 2147483647"):
        check(late, "none", 3)
