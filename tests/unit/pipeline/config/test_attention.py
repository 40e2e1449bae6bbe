"""Sequences, weights of items, and attention in a job file: what is refused, and what it says."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.load import job_of_tree

COLUMNS: dict[str, Any] = {
    "y": "label",
    "item": "categorical",
    "shop": "categorical",
    "history": {"kind": "multi_hot", "pooling": "none"},
    "tags": {"kind": "multi_hot", "pooling": "mean", "weights": "scores"},
    "scores": "ignored",
}


def job_of(model: dict[str, Any], tables: dict[str, Any] | None = None, **columns: Any) -> Job:
    data = {"format": "csv", "path": ["x"], "columns": COLUMNS | columns}
    return job_of_tree({"data": data, "model": model, "tables": tables or {}})


def test_each_table_says_how_its_lists_are_combined() -> None:
    columns = job_of({"name": "din", "attention": {"history": "item"}}).embedded_columns
    assert [column.pooling for column in columns] == ["", "", "none", "weighted_mean"]
    assert [column.of_table.weighted for column in columns] == [False, False, False, True]
    assert not any(column.table.summed_columns for column in columns)


DIN = {"name": "din"}
BOTH = DIN | {"attention": {"history": "item"}}


def attending(column: str, target: str) -> dict[str, Any]:
    return {"model": DIN | {"attention": {column: target}}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"model": {"attention": {"history": "item"}}},
            'model.attention: given; it is for model.name = "din", this is "dlrm": leave it out (a model of'
            " your own has model.options)",
        ),
        (
            {"model": DIN},
            'model.attention: column history has pooling = "none" and no target; name one, as in'
            ' { history = "item" }, or set data.columns.history.pooling to "sum" or "mean"',
        ),
        (attending("histroy", "item"), "model.attention: 'histroy' is no sequence; did you mean 'history'?"),
        (
            {"model": DIN | {"attention": {"history": "item", "tags": "item"}}},
            "model.attention: 'tags' is pooled; set data.columns.tags.pooling = \"none\"",
        ),
        (
            attending("history", "itme"),
            "model.attention.history: 'itme' is no column with a table; give a column of one id: did you mean"
            " 'item'?",
        ),
        (
            attending("history", "tags"),
            "model.attention.history: 'tags' has a list of ids; give a column of one id: there are item,"
            " shop",
        ),
        (
            {"tables": {"item": {"dim": 8}}},
            "model.attention.history: the tables of history and item have 16 and 8 floats in a row; give both"
            " the same dim (tables.history.dim)",
        ),
        (
            attending("shop", "item") | {"history": "ignored"},
            "model.attention: 'shop' is no sequence; give a multi_hot column pooling = \"none\"",
        ),
        (
            {"shop": {"kind": "categorical", "weights": "scores"}},
            'data.columns.shop.weights: given; it is for kind "multi_hot", this is "categorical"',
        ),
        (
            {"history": {"kind": "multi_hot", "pooling": "none", "weights": "scores"}},
            'data.columns.history.weights: given; pooling = "none" has no weights: leave them out, or pool by'
            ' "sum" or "mean"',
        ),
    ],
)
def test_what_does_not_fit(given: dict[str, Any], said: str) -> None:
    job_of(BOTH)
    with pytest.raises(JobFileError) as caught:
        job_of(**{"model": BOTH} | given)
    assert said in str(caught.value)


def test_without_a_header_the_weights_are_a_column_of_the_job() -> None:
    columns = {name: column for name, column in COLUMNS.items() if name != "history"}
    data = {"format": "csv", "path": ["x"], "header": False, "columns": columns}
    assert job_of_tree({"data": data}).embedded_columns[2].of_table.weighted
    del columns["scores"]
    with pytest.raises(JobFileError, match=r"data.columns.tags.weights: 'scores' is not a column; there are"):
        job_of_tree({"data": data | {"columns": columns}})
