"""`model.negatives` in a job file: what is refused, and what it says."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.load import job_of_tree

LISTS: dict[str, Any] = {"kind": "multi_hot", "table": "item", "pooling": "none"}
COLUMNS: dict[str, Any] = {
    "y": "label",
    "age": "dense",
    "price": "dense",
    "user": "categorical",
    "item": "categorical",
    "brand": {"kind": "categorical", "table": "item"},
    "skipped": LISTS,
}
MODEL: dict[str, Any] = {
    "name": "two_tower",
    "query": ["user", "age", "price", "brand"],
    "item": ["item"],
    "negatives": "skipped",
}
POOLED = {"skipped": {"kind": "multi_hot", "table": "item"}}
APART = {"skipped": {"kind": "multi_hot", "pooling": "none"}}
IN_QUERY = {"query": [*MODEL["query"], "skipped"]}


def job_of(model: dict[str, Any], columns: dict[str, Any] | None = None) -> Job:
    data = {"format": "csv", "path": ["x"], "columns": COLUMNS | (columns or {})}
    return job_of_tree({"data": data, "model": MODEL | model})


@pytest.mark.parametrize(
    ("model", "columns", "said"),
    [
        ({"negatives": "skiped"}, {}, "'skiped' is no column with a table; did you mean 'skipped'"),
        (IN_QUERY | {"negatives": "nothing"}, POOLED, "'nothing' is no column with"),
        ({"negatives": "age"}, {}, "model.negatives: 'age' is no column with a table; "),
        (IN_QUERY | {"negatives": "y"}, POOLED, "'y' is no column with a table"),
        (
            IN_QUERY,
            POOLED,
            "model.negatives: column skipped is one of model.query, too; it belongs to no tower: leave",
        ),
        (
            {},
            POOLED,
            'column skipped has no list of vectors; give it kind = "multi_hot" and pooling = "none"',
        ),
        (
            {"negatives": "brand", "query": ["user", "age", "price", "skipped"]},
            POOLED,
            "column brand has no list",
        ),
        (
            {"query": ["user", "age", "brand"], "item": ["item", "price"]},
            {},
            "model.negatives: given, and model.item has price beside the id; nothing says what a negative has"
            ' there: set model.item = ["item"], or leave negatives out',
        ),
        ({"query": ["user", "age", "price"], "item": ["item", "brand"]}, {}, "model.item has brand beside"),
        (
            {},
            APART,
            "data.columns.skipped.table: skipped has the table skipped, and the item item the table item;"
            ' negatives are items: set table = "item"',
        ),
        (
            {"name": "dlrm", "query": [], "item": []},
            {},
            'model.negatives: given; it is for model.name = "two_tower" or "sequence", this is "dlrm"',
        ),
        ({"negatives": ""}, {}, "column skipped is named 0 times"),
    ],
)
def test_what_does_not_fit(model: dict[str, Any], columns: dict[str, Any], said: str) -> None:
    with pytest.raises(JobFileError) as caught:
        job_of(model, columns)
    assert said in str(caught.value)
    assert job_of({}).model.negatives == "skipped"


def test_a_sequence_has_its_history_beside_them() -> None:
    history = {"history": LISTS | {"keep": "last"}}
    query = [*MODEL["query"], "history"]
    assert job_of({"name": "sequence", "query": query}, history).model.negatives == "skipped"
    with pytest.raises(JobFileError, match=r"model\.query: 0 columns have pooling"):
        job_of({"name": "sequence"})
