"""Columns that share a table: what it is, and which cannot."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.config.tables import TableColumn
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.load import job_of_tree

LIST = {"kind": "multi_hot", "table": "item"}
PRICES = {"kind": "bucket", "boundaries": [1, 5]}


def job_of(tables: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **columns: Any) -> Job:
    data = {"format": "csv", "path": ["x"], "columns": {"y": "label", **columns}}
    return job_of_tree({"data": data, "model": model or {}, "tables": tables or {}})


def test_columns_of_one_table_have_its_settings_and_their_own_pooling() -> None:
    job = job_of(
        {"item": {"rows": 50, "dim": 3, "kind": "growing", "optimizer": "adam", "pooled_by": "trainers"}},
        history=LIST | {"pooling": "none", "max_ids": 5},
        user="categorical",
        item="categorical",
        carts=LIST | {"pooling": "mean"},
    )
    item, user = job.tables
    assert (item.name, item.rows, item.dim, item.optimizer, user.name) == ("item", 50, 3, "adam", "user")
    assert item.columns == (
        TableColumn("history", "none", place=0),
        TableColumn("item", "", place=2),
        TableColumn("carts", "mean", pooled_by_trainers=True, place=3),
    )
    columns = job.embedded_columns
    assert [column.name for column in columns] == ["history", "user", "item", "carts"]
    assert [column.number for column in columns] == [0, 1, 0, 0]
    assert job.model_inputs == (0, [3, 16, 3, 3])
    assert job.growing_columns == ("history", "user", "item", "carts")
    assert job.growing_tables == ("item", "user")


def test_a_column_without_a_table_has_one_of_its_own_name() -> None:
    """As before tables were shared; the control shares."""
    own = job_of(history=LIST | {"table": ""}, item="categorical")
    assert [(table.name, table.poolings) for table in own.tables] == [("history", "sum"), ("item", "")]
    (shared,) = job_of(history=LIST, item="categorical").tables
    assert (shared.name, shared.poolings) == ("item", "history: sum, item: one row")
    # The table may have a name that no column has.
    (named,) = job_of(
        history=LIST | {"table": "goods"}, item={"kind": "categorical", "table": "goods"}
    ).tables
    assert named.name == "goods"


def test_the_list_of_rows_has_a_number_for_each_table() -> None:
    columns: dict[str, Any] = {"history": LIST, "user": "categorical", "item": "categorical"}
    job = job_of(model={"table_rows": [7, 9]}, **columns)
    assert {table.name: table.rows for table in job.tables} == {"item": 7, "user": 9}
    assert job.column_rows == (7, 9, 7)
    with pytest.raises(JobFileError, match=r"model.table_rows: 3 numbers given; .* each of the 2 tables"):
        job_of(model={"table_rows": [7, 9, 7]}, **columns)


@pytest.mark.parametrize(
    "columns",
    [
        {"a": PRICES, "b": PRICES | {"table": "a"}},
        {
            "a": {"kind": "categorical", "part": "hour"},
            "b": {"kind": "categorical", "part": "hour", "table": "a"},
        },
        {"a": "ip", "b": {"kind": "ip", "table": "a"}},
        {
            "user": "categorical",
            "item": "categorical",
            "last": {"kind": "categorical", "table": "item"},
            "a": {"kind": "cross", "columns": ["user", "item"]},
            "b": {"kind": "cross", "columns": ["user", "last"], "table": "a"},
        },
    ],
    ids=["buckets", "parts of times", "addresses", "crosses"],
)
def test_other_kinds_share_tables_too(columns: dict[str, Any]) -> None:
    job = job_of(**columns)
    last, before = job.embedded_columns[-1], job.embedded_columns[-2]
    assert (last.table.name, before.table.name) == ("a", "a")
    assert last.table.rows == before.table.rows


GO = r"have one table, a, and ids that do not go together: "


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"tables": {"history": {"dim": 4}}, "history": LIST},
            "tables.history: there is no table of this name; the ids of column history have rows of table"
            r" item \(data.columns.history.table\): write tables.item",
        ),
        ({"b": PRICES | {"table": "a"}}, f"a and b {GO}ids by their hash, and buckets of boundaries 1, 5"),
        (
            {"a": PRICES, "b": PRICES | {"boundaries": [1, 6], "table": "a"}},
            f"a and b {GO}buckets of boundaries 1, 5, and buckets of boundaries 1, 6; give one of them",
        ),
        (
            {"a": {"kind": "bucket", "quantiles": 4}, "b": PRICES | {"table": "a"}},
            f"{GO}4 buckets of quantiles of a, and",
        ),
        (
            {"b": {"kind": "categorical", "part": "hour", "table": "a"}},
            f"{GO}ids by their hash, and the hour of a time",
        ),
        ({"b": {"kind": "ip", "table": "a"}}, f"{GO}ids by their hash, and networks of an address"),
        (
            {"b": {"kind": "cross", "columns": ["a", "item"], "table": "a"}},
            f"{GO}ids by their hash, and combinations of ids of a, item",
        ),
        (
            {
                "b": {"kind": "cross", "columns": ["a", "item"]},
                "c": {"kind": "cross", "columns": ["item", "a"], "table": "b"},
            },
            "b and c have one table, b, .*: combinations of ids of a, item, and combinations of ids of item",
        ),
        ({"d": {"kind": "dense", "table": "a"}}, 'd.table: given; it is for kind "categorical", this is'),
        (
            {"tables": {"item": {"pooled_by": "trainers"}}, "history": LIST | {"pooling": "none"}},
            "tables.item.pooled_by: given; it is for tables of bags without weights",
        ),
        (
            {"tables": {"a": {"kind": "growing"}}, "a": PRICES, "b": PRICES | {"table": "a"}},
            'tables.a.kind: "growing" given; column a has a row for each of its values',
        ),
        (
            {"tables": {"a": {"rows": 7}}, "a": PRICES, "b": PRICES | {"table": "a"}},
            "tables.a.rows: 7 given; the table of column a has 4 rows",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(given: dict[str, Any], said: str) -> None:
    base: dict[str, Any] = {"a": "categorical", "item": "categorical"}
    job_of(**base)
    with pytest.raises(JobFileError, match=said):
        job_of(**(base | given))
