"""Two towers in a job file: what is refused, and what it says; and a job without a label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.input.plan import require_ne
from shadowsync.pipeline.jobfile.check import check_job
from shadowsync.pipeline.jobfile.ineffective import ineffective_keys
from shadowsync.pipeline.jobfile.load import job_of_tree

COLUMNS: dict[str, Any] = {
    "y": "label",
    "age": "dense",
    "user": "categorical",
    "item": "categorical",
    "tags": {"kind": "multi_hot"},
}
TOWERS: dict[str, Any] = {"name": "two_tower", "query": ["user", "age"], "item": ["item", "tags"]}


def job_of(model: dict[str, Any], columns: dict[str, Any] | None = None, **sections: Any) -> Job:
    data = {"format": "csv", "path": ["x"], "columns": COLUMNS if columns is None else columns}
    return job_of_tree({"data": data | sections.pop("data", {}), "model": model, **sections})


def test_loss_scores_and_metric_are_those_of_towers() -> None:
    job = job_of(TOWERS)
    assert (job.model.loss, job.model.scores, job.validation.metric) == (
        "in_batch_softmax",
        "similarity",
        "recall@10",
    )
    assert ineffective_keys(job_of(TOWERS | {"top": [8]})) == []
    assert [found.key for found in ineffective_keys(job_of(TOWERS | {"bottom": [8]}))] == ["model.bottom"]


SEVERAL = COLUMNS | {"z": "label"}
SEQUENCE = COLUMNS | {"tags": {"kind": "multi_hot", "pooling": "none"}}


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"query": []}, "model.query: no columns given; give those of the query: there are age, user"),
        ({"item": []}, "model.item: no columns given; give those of the item: there are age, user"),
        ({"query": ["usr", "age"]}, "model.query: 'usr' is no column that a model sees; did you mean"),
        ({"item": ["item", "y"]}, "model.item: 'y' is no column that a model sees; there are age,"),
        ({"query": ["user"]}, "model.query, model.item: column age is named 0 times; each column"),
        ({"query": ["user", "age", "tags"]}, "column tags is named 2 times; each column belongs"),
        ({"query": ["user", "age", "user"]}, "column user is named 2 times; each column belongs"),
        ({"item": ["tags", "item"]}, "model.item: 'tags' is the first column, and no column of one id"),
        (
            {"query": ["user", "tags"], "item": ["age", "item"]},
            "model.item: 'age' is the first column, and no column of one id with a table; name the item's id",
        ),
        ({"loss": "log"}, 'model.loss: "log" given, and two_tower has two towers: leave it out'),
        ({"scores": "logits"}, 'model.scores: "logits" given, and two_tower has two towers: leave it'),
        (
            {"name": "dlrm"},
            'model.query: given; it is for model.name = "two_tower" or "sequence", this is "dlrm"',
        ),
        (
            {"name": "dlrm", "query": [], "item": [], "loss": "in_batch_softmax"},
            'model.loss: "in_batch_softmax" given, and dlrm has no towers: leave it out',
        ),
        ({"output_bias": 0.5}, "model.output_bias: 0.5 given; two_tower has no logit: leave it out"),
    ],
)
def test_what_does_not_fit(model: dict[str, Any], said: str) -> None:
    with pytest.raises(JobFileError) as caught:
        job_of(TOWERS | model)
    assert said in str(caught.value)
    job_of(TOWERS)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"data": {"columns": SEQUENCE}},
            'column tags has pooling = "none", and two_tower takes no sequences',
        ),
        ({"data": {"columns": SEVERAL}}, "data.columns has 2 labels (y, z)"),
        ({"validation": {"metric": "ne"}}, "validation.metric: 'ne' needs probabilities, which scores of"),
    ],
)
def test_what_towers_cannot_have(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(JobFileError) as caught:
        job_of(TOWERS, **sections)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("item", "source"),
    [
        ("categorical", "item"),
        ({"kind": "categorical", "source": 'the "item"'}, 'the "item"'),
        ({"kind": "cross", "columns": ["user", "shop"]}, "user"),
    ],
)
def test_without_a_label_each_row_with_an_item_is_a_positive(item: Any, source: str) -> None:
    columns = {name: column for name, column in COLUMNS.items() if name != "y"}
    columns |= {"shop": "categorical", "item": item}
    job = job_of(TOWERS | {"item": ["item", "tags", "shop"]}, columns)
    assert job.data.label_names == ("label",)
    label = job.data.columns["label"]
    quoted = source.replace('"', '""')
    assert (label.source, label.expression) == (source, f'"{quoted}" is not null')
    again = Job.model_validate(job.model_dump(mode="json", by_alias=True))
    assert again.digest == job.digest


def test_other_models_need_a_label() -> None:
    columns = {name: column for name, column in COLUMNS.items() if name != "y"}
    for model in ({"name": "dlrm"}, TOWERS | {"item": ["itme", "tags"]}):
        with pytest.raises(JobFileError, match="no column is a label"):
            job_of(model, columns)
    assert job_of(TOWERS).data.label_names == ("y",)


def test_runs_of_towers_are_not_compared_by_ne() -> None:
    with pytest.raises(JobFileError) as refused:
        require_ne(job_of(TOWERS))
    assert 'model.name: "two_tower" given; runs are compared by NE' in str(refused.value)
    assert "model.scores" not in str(refused.value), "nobody gave it"


def test_a_row_without_an_item_is_said_to_lack_the_item(tmp_path: Path) -> None:
    """Not the label, which nobody wrote; a label that was written is named."""
    (tmp_path / "log.csv").write_text("user,film\nu1,f1\nu2,\nu3,f3\n")

    def bad_samples(**columns: Any) -> list[str]:
        data = {"path": [str(tmp_path / "log.csv")]}
        both = {"user": "categorical", "item": {"kind": "categorical", "source": "film"}}
        towers = {"name": "two_tower", "query": ["user"], "item": ["item"]}
        return list(check_job(job_of(towers, both | columns, data=data)).bad_samples)

    assert bad_samples() == [f"{tmp_path}/log.csv: film '' is missing, and each row needs an item: u2,"]
    seen = {"kind": "label", "source": "film", "type": "text", "expression": "film != 'x'"}
    (said,) = bad_samples(seen=seen)
    assert "seen '' is missing, and each row needs a label" in said
