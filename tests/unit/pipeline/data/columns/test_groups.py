"""Columns of groups: one hash of a value, whatever file, topic or prepared folder it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.hashing import column_number, hash_bytes
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.types import Uint64Array
from shadowsync.tests.support.data.prepared import batches_of, check_prepared
from shadowsync.tests.support.outside.broker import running_broker

COLUMNS: dict[str, Any] = {
    "y": "label",
    "item": "categorical",
    "user": "group",
    "session": {"kind": "group"},
    "user_id": {"kind": "categorical", "source": "user"},
}
ROWS = 700


def frame() -> pl.DataFrame:
    """Users are integers, of which some are missing; sessions are texts."""
    draw = np.random.default_rng(1)
    users = [None if user == 3 else user * 1_000_003 - 40 for user in draw.integers(0, 60, ROWS).tolist()]
    return pl.DataFrame(
        {
            "y": draw.integers(0, 2, ROWS),
            "item": [f"i{item}" for item in draw.integers(0, 40, ROWS)],
            "user": pl.Series(users, dtype=pl.Int64),
            "session": [f"session {session % 7} of a long name" for session in range(ROWS)],
        }
    )


def job_on(path: str | Path, data_format: str = "csv", columns: dict[str, Any] = COLUMNS, **data: Any) -> Job:
    section = {"format": data_format, "path": str(path), "columns": columns, "span_bytes": 1 << 16}
    return job_of_tree({"data": section | data, "model": {"table_rows": 100}, "trainer": {"batch": 64}})


def groups_of(job: Job) -> Uint64Array:
    source = JobInput(job)
    chunks = [chunk for span in source.plan(job.data.path) for chunk in source.chunks(span, BadRows(0))]
    return np.concatenate([chunk.examples.groups for chunk in chunks], axis=1)


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    frame().write_csv(path)
    return path


def test_every_format_has_the_same_groups(csv: Path, tmp_path: Path) -> None:
    want, rows = groups_of(job_on(csv)), frame()
    assert want.dtype == np.uint64
    number = column_number("group")
    texts = [None if user is None else str(user) for user in rows["user"]]
    defined = [0 if text is None else hash_bytes(number, text.encode()) for text in texts]
    assert want[0].tolist() == defined
    assert 0 < defined.count(0) < 40
    found = {}
    rows.write_parquet(tmp_path / "integers.parquet")
    found["integers"] = job_on(tmp_path / "integers.parquet", "parquet")
    table = rows.with_columns(pl.col("user").cast(pl.String)).to_arrow()
    for name in ("user", "session"):
        coded = table[name].combine_chunks().cast(pa.string()).dictionary_encode()
        table = table.set_column(table.column_names.index(name), name, coded)
    pq.write_table(table, tmp_path / "dictionary.parquet")
    found["a dictionary"] = job_on(tmp_path / "dictionary.parquet", "parquet")
    for name, job in found.items():
        assert np.array_equal(groups_of(job), want), name
    with running_broker() as broker:
        broker.write("log", csv.read_text("utf-8").splitlines()[1:], partition=0)
        assert np.array_equal(groups_of(job_on(broker.url("log"), header=False)), want)
    # The control: another value is another group, and columns of one value have one hash.
    other = rows.with_columns(pl.col("user") + 1, session=pl.col("user").cast(pl.String))
    other.write_csv(tmp_path / "other.csv")
    changed = groups_of(job_on(tmp_path / "other.csv"))
    assert not np.isin(changed[0][changed[0] != 0], want[0]).any()
    assert np.array_equal(changed[1], want[0])


def test_a_prepared_folder_gives_the_same_batches(csv: Path, tmp_path: Path) -> None:
    job = job_on(csv)
    mine, _ = check_prepared(job.model_dump(mode="json", exclude_unset=True), tmp_path / "prepared")
    assert mine[0].groups.shape == (2, 64)
    assert not np.array_equal(mine[0].groups, mine[1].groups)
    # Rows keep their groups when they are shuffled.
    of_user = {int(key): set[int]() for key in np.unique(groups_of(job)[0])}
    for batch in mine:
        for key, row in zip(batch.groups[0].tolist(), batch.rows[1].tolist(), strict=True):
            of_user[key].add(row)
    assert all(len(rows) == 1 for rows in of_user.values())


def test_a_job_without_groups_has_none(csv: Path) -> None:
    columns = {name: kind for name, kind in COLUMNS.items() if kind not in ("group", {"kind": "group"})}
    columns |= {"user": "ignored", "session": "ignored"}
    job = job_on(csv, columns=columns)
    assert groups_of(job).shape == (0, 0)
    assert next(batches_of(job)).groups.shape == (0, 0)


def validated(**validation: Any) -> Job:
    section = {"format": "csv", "path": "x", "columns": COLUMNS}
    return job_of_tree({"data": section, "validation": validation})


def test_metrics_of_groups_name_a_column_of_groups() -> None:
    job = validated(metric="ndcg@5", group="session")
    assert job.ranking == (5, 1, 0)
    assert job.validation.highest_is_best
    other = validated(group="user").ranking
    assert other == (10, 0, 0)
    assert validated().ranking is None
    for wrong, said in (
        ({"metric": "ndcg@5"}, r"'ndcg@5' given without groups; name a column of kind \"group\""),
        ({"metric": "ndcg@0", "group": "user"}, "a number of rows from 1 to 1000, such as ndcg@10"),
        ({"metric": "ndcg@x", "group": "user"}, "a number of rows from 1 to 1000"),
        ({"metric": "recall@1001", "group": "user"}, "a number of rows from 1 to 1000"),
        ({"metric": "ndcg", "group": "user"}, r"with validation.group ndcg@10, recall@10, map@10"),
        ({"metric": "auc@3", "group": "user"}, "'auc@3' given; give one of"),
        ({"group": "item"}, r"'item' is no column of kind \"group\"; there are user, session"),
        ({"group": "sesion"}, "did you mean 'session'"),
    ):
        with pytest.raises(JobFileError, match=said):
            validated(**wrong)


def test_a_number_is_no_group(tmp_path: Path) -> None:
    frame().with_columns(pl.col("user").cast(pl.Float64)).write_parquet(tmp_path / "floats.parquet")
    with pytest.raises(DataError, match="user needs texts or integers; convert it to texts or integers"):
        groups_of(job_on(tmp_path / "floats.parquet", "parquet"))
