"""What `--algorithms` may say, and the jobs that come of it."""

from __future__ import annotations

import pytest
from shadowsync.lab.comparison.variants import (
    REFERENCE,
    Variant,
    parse_variants,
    reference_job,
    slug,
    variant_job,
)
from shadowsync.lab.virtual.plan import virtual_job
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError


def test_names_rates_and_options() -> None:
    assert parse_variants("none, easgd,easgd@5,easgd:elastic_rate=0.3,bmuf:step=1:momentum=0.5@30") == [
        Variant("none", "none"),
        Variant("easgd", "easgd"),
        Variant("easgd@5", "easgd", 5),
        Variant("easgd:elastic_rate=0.3", "easgd", None, {"elastic_rate": 0.3}),
        Variant("bmuf:step=1:momentum=0.5@30", "bmuf", 30, {"step": 1, "momentum": 0.5}),
    ]


def test_plug_ins_have_a_colon_of_their_own() -> None:
    variants = parse_variants("my.package:Mine@5,./mine.py:Mine:rate=0.5,my.package:Mine:name=a:b=2")
    assert [variant.algorithm for variant in variants] == [
        "my.package:Mine",
        "./mine.py:Mine",
        "my.package:Mine",
    ]
    assert [variant.options for variant in variants] == [{}, {"rate": 0.5}, {"name": "a", "b": 2}]


def test_values_are_those_of_toml() -> None:
    (variant,) = parse_variants('x:a=true:b="1,5":c=[1,2]:d=word:e=1e-3')
    assert variant.options == {"a": True, "b": "1,5", "c": [1, 2], "d": "word", "e": 1e-3}


def test_what_is_written_twice_has_labels_of_its_own() -> None:
    labels = [variant.label for variant in parse_variants("ma,ma,easgd,ma")]
    assert labels == ["ma", "ma (2)", "easgd", "ma (3)"]
    assert parse_variants(REFERENCE)[0].label == f"{REFERENCE} (2)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no algorithm given"),
        (" , ", "no algorithm given"),
        ("easgd@", "the rate '' in"),
        ("easgd@0", "the rate '0' in"),
        ("easgd@-5", "the rate '-5' in"),
        ("easgd@five", "the rate 'five' in"),
        ("@5", "is not an algorithm with options"),
        (":a=1", "is not an algorithm with options"),
        ("easgd:a=1:b", "is not an algorithm with options"),
        ("easgd:=1", "has an empty or repeated key"),
        ("easgd:a=1:a=2", "has an empty or repeated key"),
        ("easgd:a=[1,ma", "is not closed"),
        ('easgd:a="1,ma', "is not closed"),
        ("ma\x1b[31m", "cannot be printed"),
    ],
)
def test_what_cannot_be_read(text: str, said: str) -> None:
    with pytest.raises(JobFileError) as caught:
        parse_variants(text)
    assert said in str(caught.value)
    assert "--algorithms" in str(caught.value)


@pytest.fixture
def base() -> Job:
    tree = {
        "data": {"format": "parquet", "path": ["/x"]},
        "trainer": {"count": 3, "workers": 2},
        "sync": {"algorithm": "easgd", "mode": "fixed", "every": 7, "options": {"elastic_rate": 0.25}},
        "network": {"delay": "20ms"},
    }
    return Job.model_validate(tree)


def test_the_job_of_a_cell_differs_in_its_synchronization(base: Job) -> None:
    job = variant_job(base, Variant("e@5", "easgd", 5, {}), 4, "n", "/runs")
    assert (job.sync.algorithm, job.sync.mode, job.sync.every) == ("easgd", "fixed", 5)
    assert (job.run.seed, job.run.name, job.run.directory) == (4, "n", "/runs")
    assert job.model_dump(exclude={"run", "sync"}) == base.model_dump(exclude={"run", "sync"})
    assert variant_job(base, Variant("e", "easgd"), 4, "n", "/runs").sync.mode == "shadow"


def test_the_jobs_own_options_are_its_own_algorithms(base: Job) -> None:
    assert variant_job(base, Variant("e", "easgd"), 1, "n", "r").sync.options == {"elastic_rate": 0.25}
    given = Variant("e", "easgd", None, {"elastic_rate": 0.5})
    assert variant_job(base, given, 1, "n", "r").sync.options == {"elastic_rate": 0.5}
    assert variant_job(base, Variant("n", "none"), 1, "n", "r").sync.options == {}


def test_the_default_of_one_trainer_is_no_variants_own() -> None:
    """Under `easgd` with its rate of 1 several trainers would not synchronize."""
    alone = Job.model_validate({"data": {"format": "parquet", "path": ["/x"]}})
    assert alone.sync.options == {"elastic_rate": 1.0}
    assert variant_job(alone, Variant("e", "easgd"), 1, "n", "r").sync.options == {}
    several = virtual_job(alone, Variant("e", "easgd"), 4, 1)
    assert (several.trainer.count, several.sync.options) == (4, {})


def test_one_trainer_has_nobody_to_synchronize_with(base: Job) -> None:
    job = reference_job(base, 4, "n", "/runs")
    assert (job.trainer.count, job.trainer.workers) == (1, 2)
    assert (job.sync.algorithm, job.sync.options, job.sync_nodes) == ("none", {}, 0)
    assert job.network.delay == "20ms"


def test_folders_are_called_by_plain_names() -> None:
    assert slug("easgd:elastic_rate=0.3@30") == "easgd-elastic_rate-0.3-30"
    assert slug("../../etc:x=1") == "etc-x-1"
    assert slug("///") == "cell"
    assert len(slug("x" * 500)) == 60
