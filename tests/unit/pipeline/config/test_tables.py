"""What a job file says of its tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.config.tables import Growth, TableColumn, TableSettings
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.load import validate_job

BASE = {
    "data": {"format": "parquet", "path": ["x"], "categorical_features": 3, "dense_features": 2},
    "model": {"embedding_dim": 8, "table_rows": [10, 20, 30]},
    "embedding": {"optimizer": "sgd", "lr": 0.5, "init_scale": 0.1},
}


def job_of(**tables: object) -> Job:
    return validate_job({**BASE, "tables": tables}, where="job.toml")


def test_without_sections_all_tables_are_what_the_job_says_of_all() -> None:
    wanted = [
        TableSettings(f"C{n}", 10 * n, 8, "sgd", 0.5, 0.1, columns=(TableColumn(f"C{n}", place=n - 1),))
        for n in (1, 2, 3)
    ]
    assert list(job_of().tables) == wanted
    assert job_of().column_rows == (10, 20, 30)
    assert job_of().model_inputs == (2, [8, 8, 8])


def test_a_section_changes_its_table_and_no_other() -> None:
    whole = {"rows": 99, "dim": 4, "optimizer": "adam", "lr": 0.01, "init_scale": 2.0, "storage": "bfloat16"}
    job = job_of(C2=whole, C3={"dim": 5})
    second, third = (TableColumn(f"C{n}", place=n - 1) for n in (2, 3))
    assert job.tables[1] == TableSettings("C2", 99, 4, "adam", 0.01, 2.0, "bfloat16", columns=(second,))
    assert job.tables[2] == TableSettings("C3", 30, 5, "sgd", 0.5, 0.1, columns=(third,))
    assert job.tables[0] == job_of().tables[0]
    assert job.column_rows == (10, 99, 30)
    assert job.model_inputs == (2, [8, 4, 5])


def test_tables_follow_the_columns_of_a_schema() -> None:
    tags = {"kind": "multi_hot", "pooling": "mean"}
    columns = {"y": "label", "tags": tags, "age": "dense", "user": "categorical"}
    data = {"format": "csv", "path": ["x"], "columns": columns}
    job = validate_job({"data": data, "tables": {"tags": {"dim": 3}}}, where="job.toml")
    assert [(t.name, t.poolings, t.dim) for t in job.tables] == [("tags", "mean", 3), ("user", "", 16)]
    assert job.model_inputs == (1, [3, 16])


def test_the_sections_are_written_as_they_are_read(resolved: Callable[[Any], Job]) -> None:
    job = job_of(C2={"dim": 4})
    assert job.model_dump(mode="json")["tables"]["C2"]["dim"] == 4
    assert resolved(job) == job
    assert resolved(job).digest == job.digest != job_of().digest


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"C2": {"pooled_by": "trainers"}}, "tables.C2.pooled_by: given; it is for tables of bags without"),
        ({"C22": {}}, "tables.C22: there is no table of this name; did you mean 'C2'?"),
        (
            {"user": {}},
            "tables.user: there is no table of this name; remove its section; the tables are C1, C2, C3",
        ),
        ({"C1": {"dims": 3}}, "tables.C1.dims: unknown key; did you mean 'dim'?"),
        ({"C1": {"dim": 0}}, "tables.C1.dim: 0 given; input should be greater than or equal to 1"),
        (
            {"C1": {"optimizer": "adamw"}},
            "tables.C1.optimizer: 'adamw' given; input should be 'sgd', 'rowwise",
        ),
        ({"C1": 3}, "tables.C1: 3 given; it is a section, write [tables.C1] and its keys below"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(tables: dict[str, object], why: str) -> None:
    with pytest.raises(JobFileError) as refused:
        job_of(**tables)
    assert str(refused.value).startswith(f"job.toml: {why}")


def test_the_schema_has_the_name_of_the_file_only() -> None:
    with pytest.raises(JobFileError, match="table_sections: unknown key"):
        validate_job({**BASE, "table_sections": {}}, where="job.toml")


def test_a_growing_table_says_when_ids_get_and_lose_rows() -> None:
    job = job_of(
        C2={"kind": "growing", "rows": 7, "admit_after": 3, "evict": "never"}, C3={"kind": "growing"}
    )
    assert [table.growth for table in job.tables] == [None, Growth(3, "never"), Growth()]
    assert job.growing_tables == ("C2", "C3")
    assert job.tables[1].rows == 7
    assert job_of().growing_tables == ()


@pytest.mark.parametrize(
    "user", [{"kind": "categorical", "part": "hour"}, {"kind": "bucket", "boundaries": [1, 2]}]
)
def test_tables_that_cannot_grow_are_refused(user: dict[str, object]) -> None:
    data = {"format": "csv", "path": ["x"], "columns": {"y": "label", "user": user}}
    with pytest.raises(JobFileError, match="has a row for each of its values"):
        validate_job({"data": data, "tables": {"user": {"kind": "growing"}}}, where="job.toml")
    validate_job({"data": data}, where="job.toml")


GROWTH = {
    "max_bytes": 1000,
    "admit_after": 2,
    "evict": "never",
    "evict_after_batches": 9,
    "evict_after_seconds": 1.5,
}


@pytest.mark.parametrize(("key", "value"), GROWTH.items())
def test_a_hashed_table_has_no_settings_of_growth(key: str, value: object) -> None:
    with pytest.raises(
        JobFileError, match=rf"tables\.C1\.{key}: given; it is for kind = .growing., .* .hashed."
    ):
        job_of(C1={key: value})
    job_of(C1={"kind": "growing", key: value})


@pytest.mark.parametrize("value", [0, 256, 1.5])
def test_a_count_of_batches_is_a_small_number(value: float) -> None:
    with pytest.raises(JobFileError, match=r"tables\.C1\.admit_after"):
        job_of(C1={"kind": "growing", "admit_after": value})


def test_a_growing_table_may_be_bounded_by_its_bytes() -> None:
    # 8 floats and their sgd without state, 42 bytes for the search.
    for most, rows in ((74_000, 1000), (74_073, 1000), (74, 1), (10**15, 2**31 - 1)):
        assert job_of(C1={"kind": "growing", "max_bytes": most}).tables[0].rows == rows
    timed = {"kind": "growing", "evict_after_seconds": 60.0, "max_bytes": 78_000}
    assert job_of(C1=timed).tables[0].rows == 1000
    narrow = {"kind": "growing", "max_bytes": 74_000, "storage": "bfloat16", "optimizer": "adagrad", "dim": 4}
    assert job_of(C1=narrow).tables[0].rows == 74_000 // (8 + 16 + 42)
    with pytest.raises(JobFileError, match=r"tables\.C1\.max_bytes: 73 given; a row takes 74"):
        job_of(C1={"kind": "growing", "max_bytes": 73})
    with pytest.raises(JobFileError, match=r"tables\.C1\.max_bytes: given, and rows too; give one of them"):
        job_of(C1={"kind": "growing", "max_bytes": 7400, "rows": 7})


def test_tables_grow_where_no_size_is_given() -> None:
    model = {"embedding_dim": 8}
    job = validate_job({**BASE, "model": model, "tables": {"C2": {"rows": 7}}}, where="job.toml")
    assert job.growing_tables == ("C1", "C3")
    assert job.column_rows == (100_000, 7, 100_000)
    hashed = validate_job({**BASE, "model": {**model, "table_kind": "hashed"}}, where="job.toml")
    assert hashed.growing_tables == ()
    sized = {"table_rows": 9, "table_kind": "growing"}
    assert validate_job({**BASE, "model": sized}, where="job.toml").growing_tables == ("C1", "C2", "C3")
    assert job.hashed_tables == {"C2": 7}


def test_a_resolved_job_keeps_its_kinds(resolved: Callable[[Any], Job]) -> None:
    """Also one of a run from before tables grew by default, which has a size and no kind."""
    job = validate_job({**BASE, "model": {}}, where="job.toml")
    tree = job.model_dump(mode="json", by_alias=True)
    assert resolved(tree).tables == job.tables
    del tree["model"]["table_kind"]
    assert resolved(tree).growing_tables == ()


def test_a_table_with_a_row_for_each_value_does_not_grow_by_default() -> None:
    columns = {"hour": {"kind": "bucket", "source": "n", "boundaries": [1, 2]}, "id": "categorical"}
    data = {"format": "csv", "path": ["x"], "columns": {"y": "label", **columns}}
    job = validate_job({"data": data}, where="job.toml")
    assert job.growing_tables == ("id",)
    assert job.hashed_tables == {}
