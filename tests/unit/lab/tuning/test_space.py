"""The settings of a study: how they are written, what is refused, and the jobs of trials."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.lab.tuning.space import Choice, Range, as_options, check_space, parse_space, trial_job
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError


def a_job(**changes: dict[str, Any]) -> Job:
    data = {"format": "criteo_tsv", "path": ["part.tsv"]}
    sync = {"algorithm": "easgd", "options": {"elastic_rate": 0.3}}
    return Job.model_validate({"data": data, "sync": sync, "trainer": {"count": 2}} | changes)


def test_keys_of_synchronization_need_two_trainers() -> None:
    alone = a_job(trainer={"count": 1})
    said = "sync.algorithm, sync.gap would make no difference: the job has one trainer"
    for more in ([], ["trainer.lr=1e-4..1"], ["trainer.count=1"]):
        with pytest.raises(JobFileError, match=said) as refused:
            check_space(parse_space(["sync.algorithm=easgd,ma", "sync.gap=1..64", *more]), alone)
        assert "--set trainer.count=4" in refused.value.remedy
    check_space(parse_space(["sync.algorithm=easgd,ma", "trainer.count=1,2"]), alone)
    check_space(parse_space(["trainer.lr=1e-4..1"]), alone)
    check_space(parse_space(["sync.algorithm=easgd,ma"]), a_job())


def test_searches_are_parsed() -> None:
    assert parse_space(["sync.algorithm=easgd, ma", "sync.gap=1..64:log", "trainer.lr=1e-4..0.1"]) == (
        Choice("sync.algorithm", ("easgd", "ma")),
        Range("sync.gap", 1, 64, log=True),
        Range("trainer.lr", 1e-4, 0.1, log=False),
    )
    (mixed,) = parse_space(["trainer.lr=0.5..2"])
    assert mixed == Range("trainer.lr", 0.5, 2.0, log=False)
    assert parse_space(["sync.gap=01..1_0"]) == (Range("sync.gap", 1, 10, log=False),)
    assert parse_space(["trainer.workers=1,2,4"]) == (Choice("trainer.workers", (1, 2, 4)),)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([], "no --search given"),
        (["sync.gap"], "'sync.gap' is not SECTION.KEY=VALUES"),
        (["gap=1..2"], "'gap=1..2' is not SECTION.KEY=VALUES"),
        (["sync.gap="], "'sync.gap=' is not SECTION.KEY=VALUES"),
        (["run.seed=1..9"], "run.seed is not to be searched"),
        (["data.epochs=1,2"], "data.epochs is not to be searched"),
        (["sync.gap=1,2", "sync.gap=1..9"], "sync.gap is given twice"),
        (["sync.gap=9..1"], "LOW must be below HIGH"),
        (["sync.gap=0..8:log"], "a logarithmic range begins above 0"),
        (["sync.gap=-1e400..1"], "LOW must be below HIGH"),
        ([f"sync.gap=1..1{'0' * 400}"], "LOW must be below HIGH"),
        (["sync.gap=1__0..20"], "has no range LOW..HIGH"),
        (["sync.gap=a..b"], "'sync.gap=a..b' has no range LOW..HIGH"),
        (["sync.algorithm=ma,,easgd"], "has an empty value or a list"),
        (["sync.algorithm=ma,ma"], "has a value twice"),
    ],
)
def test_what_cannot_be_searched_is_refused(texts: list[str], said: str) -> None:
    with pytest.raises(JobFileError) as refused:
        parse_space(texts)
    assert said in refused.value.what
    assert refused.value.remedy


def test_values_that_the_job_cannot_have_are_named() -> None:
    check_space(
        parse_space(["sync.algorithm=easgd,ma,bmuf", "sync.gap=1..64", "trainer.lr=1e-4..1"]), a_job()
    )
    for text, named in (
        ("sync.algorithm=ma,no_such", "--search: sync.algorithm = no_such: "),
        ("trainer.workers=0..4", "--search: trainer.workers = 0: "),
        ("trainer.no_key=1,2", "--search: trainer.no_key = 1: "),
        ("trainer.count.more=1,2", "--search: trainer.count.more = 1: "),
    ):
        with pytest.raises(JobFileError) as refused:
            check_space(parse_space([text]), a_job())
        assert refused.value.what.startswith(named), refused.value.what


def test_a_trial_keeps_the_options_of_its_own_algorithm_only() -> None:
    base = a_job()
    same = trial_job(base, {"sync.gap": 9}, "trial-0001", "/runs")
    assert (same.sync.options, same.sync.gap, same.run.name) == ({"elastic_rate": 0.3}, 9, "trial-0001")
    other = trial_job(base, {"sync.algorithm": "ma", "trainer.lr": 0.5}, "trial-0002", "/runs")
    assert (other.sync.algorithm, other.sync.options, other.trainer.lr) == ("ma", {}, 0.5)
    with_options = trial_job(base, {"sync.options.elastic_rate": 0.1}, "trial-0003", "/runs")
    assert with_options.sync.options == {"elastic_rate": 0.1}
    assert base.sync.options == {"elastic_rate": 0.3}, "the base is as it was"


def test_a_trial_has_the_default_algorithm_of_its_number_of_trainers() -> None:
    alone = Job.model_validate({"data": {"format": "parquet", "path": ["/x"]}})
    several = trial_job(alone, {"trainer.count": 2}, "trial-0001", "/runs").sync
    assert (alone.sync.algorithm, several.algorithm, several.options) == ("easgd", "bmuf", {})


def test_the_settings_of_one_table_can_be_searched() -> None:
    base = a_job(tables={"C1": {"lr": 0.5}})
    job = trial_job(base, {"tables.C1.lr": 0.25, "tables.C2.lr": 0.125}, "trial", "/runs")
    found = {table.name: table.lr for table in job.tables}
    assert (found["C1"], found["C2"], found["C3"]) == (0.25, 0.125, base.embedding.lr)


def test_values_as_options() -> None:
    values = {"sync.algorithm": "ma", "trainer.lr": 0.01, "trainer.distinct_rows": True}
    assert list(as_options(values)) == [
        "--set sync.algorithm=ma",
        "--set trainer.lr=0.01",
        "--set trainer.distinct_rows=true",
    ]
