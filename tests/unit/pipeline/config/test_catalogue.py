"""What a job ranks among a whole catalogue, and the refusals of what it cannot rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.load import job_of_tree, load_job
from shadowsync.pipeline.types import RetrievalSettings

COLUMNS = {
    "user": "categorical",
    "film": "categorical",
    "of": {"kind": "group", "source": "user"},
    "other": {"kind": "group", "source": "film"},
    "y": "label",
}
TOWERS = {"name": "two_tower", "query": ["user"], "item": ["film"]}


def job_of(model: dict[str, Any] = TOWERS, data: dict[str, Any] | None = None, **validation: Any) -> Job:
    section = {"format": "csv", "path": "/x.csv", "columns": COLUMNS} | (data or {})
    return job_of_tree({"data": section, "model": model, "validation": validation})


def test_a_catalogue_has_its_own_metrics() -> None:
    job = job_of(items="training")
    assert job.validation.metric == "recall@10"
    assert job.retrieval == RetrievalSettings(10, "training", None, False)
    grouped = job_of(items="/items.csv", group="other", metric="ndcg@25", exclude_trained=True)
    assert grouped.retrieval == RetrievalSettings(25, "/items.csv", 1, True)
    assert grouped.ranking is None, "a group is a query, and its rows are not ranked among themselves"
    assert job_of(items="training", metric="mrr").retrieval == job.retrieval
    assert job_of(items="training", metric="auc").retrieval == job.retrieval
    assert job_of(items="training", metric="hit@3").validation.highest_is_best


def test_without_a_catalogue_a_job_is_as_before() -> None:
    job = job_of(group="of", metric="recall@5", items="")
    assert job.retrieval is None
    assert job.ranking is not None
    assert job_of(items="").validation.metric == "auc"


@pytest.mark.parametrize(
    ("validation", "items"),
    [
        ({}, "training"),
        ({"group": "of", "exclude_trained": True}, "training"),
        ({"metric": "hit@5"}, "training"),
        ({"metric": "mrr"}, "training"),
        ({"metric": "auc"}, ""),
        ({"group": "of", "metric": "map@5"}, ""),
        ({"items": ""}, ""),
        ({"items": "/i.csv"}, "/i.csv"),
    ],
)
def test_towers_rank_the_items_of_the_training_part_unless_told_otherwise(
    validation: dict[str, Any], items: str
) -> None:
    job = job_of(**validation)
    assert job.validation.items == items
    again = Job.model_validate(job.model_dump(mode="json", by_alias=True))
    assert again.digest == job.digest
    assert job_of(model={"name": "dlrm"}).validation.items == ""
    assert job_of(data={"follow": True}).validation.items == ""


WITHOUT_LABEL = {name: column for name, column in COLUMNS.items() if name != "y"}


@pytest.mark.parametrize(
    ("validation", "data", "remedy"),
    [
        ({"items": ""}, {"validation_path": "/v.csv"}, 'give a file of items, or "training"'),
        (
            {"metric": "auc"},
            {"split": {"by": "fraction", "test": 0.1}},
            'give a file of items, or "training"',
        ),
        ({}, {"follow": True, "eval_path": "/e.csv"}, "give a file of items"),
    ],
)
def test_held_out_positives_alone_are_refused_without_a_catalogue(
    validation: dict[str, Any], data: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(JobFileError) as refused:
        job_of(data={"columns": WITHOUT_LABEL} | data, **validation)
    assert "validation.items: not given, and without a label each row is a positive" in str(refused.value)
    assert str(refused.value).endswith(remedy)
    # With a label there may be negatives, and without held-out rows nothing is scored.
    job_of(data=data, **validation)
    without = {"columns": WITHOUT_LABEL, "follow": data.get("follow", False)}
    assert not job_of(data=without, **validation).data.has_held_out


@pytest.mark.parametrize(
    ("settings", "training"),
    [
        ({"items": "training"}, True),
        ({"items": "/i.csv"}, False),
        ({"items": "/i.csv", "group": "of"}, False),
    ],
)
def test_which_jobs_need_the_training_part(settings: dict[str, Any], training: bool) -> None:
    found = job_of(**settings).retrieval
    assert found is not None
    assert found.needs_training_part is training
    excluding = job_of(**settings | {"group": "of"}, exclude_trained=True).retrieval
    assert excluding is not None
    assert excluding.needs_training_part


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"items": "", "metric": "mrr"}, "validation.metric: 'mrr' given; give one of"),
        ({"items": "", "metric": "hit@10"}, "validation.metric: 'hit@10' given without a catalogue"),
        ({"items": "", "metric": "recall@10"}, "validation.metric: 'recall@10' given without groups"),
        ({"items": "training", "metric": "map@10", "group": "of"}, "give one of recall@10, ndcg@10, hit@10"),
        ({"items": "training", "metric": "recall@0"}, "a number of rows from 1 to 1000"),
        ({"items": "training", "exclude_trained": True}, "true given without validation.group"),
        ({"items": "", "exclude_trained": True, "group": "of"}, "true given without validation.items"),
        ({"items": "training", "group": "user"}, "is no column of kind"),
        (
            {"items": "training", "model": {"name": "dlrm"}},
            'it is for sequence or two_tower, and model.name is "dlrm"',
        ),
        ({"items": "training", "data": {"follow": True}}, "give a file of items"),
        (
            {"items": "/i.csv", "group": "of", "exclude_trained": True, "data": {"follow": True}},
            "validation.exclude_trained: True given; with data.follow",
        ),
    ],
)
def test_what_cannot_be_ranked_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(JobFileError) as refused:
        job_of(**settings)
    assert said in str(refused.value)


def test_a_file_of_items_is_found_from_the_job_file(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    text = (
        '[data]\nformat = "csv"\npath = "x.csv"\n[data.columns]\nuser = "categorical"\nfilm = "categorical"\n'
    )
    text += '[model]\nname = "two_tower"\nquery = ["user"]\nitem = ["film"]\n[validation]\nitems = "ITEMS"\n'
    beside = str(tmp_path / "i.csv")
    for given, want in (("i.csv", beside), ("training", "training"), ("s3://b/i", "s3://b/i")):
        file.write_text(text.replace("ITEMS", given))
        assert load_job(file).validation.items == want
