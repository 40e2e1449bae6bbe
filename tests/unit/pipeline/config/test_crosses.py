"""Crosses of columns: which row a combination has, the same everywhere, and what is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.data.hashing import column_number, hash_bytes, table_rows_of
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.prepare.preparation import prepare_folder
from shadowsync.pipeline.saved_model.input_rows import input_schema, rows_of_columns
from shadowsync.pipeline.saved_model.table import Table
from shadowsync.tests.support.data.prepared import batches_of, on_folder, same_batches
from shadowsync.tests.support.data.schemas import read_all

ROWS = 997
USERS = ["ann", "bob", "", "ann", "bob", "ann"]
AGES = [17.5, 18.0, None, 30.0, 17.0, 17.9]
# Users by bucket; the last combination is the first one again.
BUCKETS = [0, 1, 3, 2, 0, 0]
COLUMNS: dict[str, Any] = {
    "y": "label",
    # Before its columns: they need not be read first.
    "user_by_age": {"kind": "cross", "columns": ["user", "years"]},
    "user": "categorical",
    "years": {"kind": "bucket", "source": "age", "boundaries": [18, 25]},
}
LABELS = [at % 2 for at in range(len(USERS))]


def _tree(path: Path, **data: Any) -> dict[str, Any]:
    section = {"format": "csv", "path": str(path), "columns": COLUMNS} | data
    return {"data": section, "model": {"table_rows": ROWS}}


def _csv(folder: Path, header: str = "y,user,age\n") -> Path:
    path = folder / "log.csv"
    ages = ["" if age is None else str(age) for age in AGES]
    lines = [f"{label},{user},{age}\n" for label, user, age in zip(LABELS, USERS, ages, strict=True)]
    path.write_text(header + "".join(lines))
    return path


def _expected(columns: tuple[str, str] = ("user", "years")) -> list[int]:
    """By the definition: 8 bytes of each, the hash of an id and the row of a bucket."""
    rows = []
    for user, bucket in zip(USERS, BUCKETS, strict=True):
        keys = {"user": hash_bytes(column_number("user"), user.encode()), "years": bucket}
        value = struct.pack("<2Q", *(keys[name] for name in columns))
        hashed = np.array([[hash_bytes(column_number("user_by_age"), value)]], np.uint64)
        rows.append(int(table_rows_of(hashed, (ROWS,))[0, 0]))
    return rows


def test_rows_of_combinations_in_text_and_parquet(tmp_path: Path) -> None:
    job = job_of_tree(_tree(_csv(tmp_path)))
    assert [table.name for table in job.tables] == ["user_by_age", "user", "years"]
    read = read_all(job).rows
    assert read[0].tolist() == _expected()
    assert read[2].tolist() == BUCKETS
    # Five combinations, and no column alone tells them apart.
    assert [len(set(rows)) for rows in read.tolist()] == [5, 3, 4]
    table = pa.table({"y": LABELS, "user": USERS, "age": AGES})
    pq.write_table(table, tmp_path / "log.parquet")
    assert np.array_equal(read_all(job_of_tree(_tree(tmp_path / "log.parquet", format="parquet"))).rows, read)
    given = {name: table[name].chunk(0) for name in ("user", "age")}
    raw = rows_of_columns(given, input_schema(job, {}), [], "a dict", np.arange(len(USERS)))
    assert np.array_equal(raw.examples.rows, read)


def test_the_order_of_the_columns_counts(tmp_path: Path) -> None:
    turned = COLUMNS | {"user_by_age": {"kind": "cross", "columns": ["years", "user"]}}
    rows = read_all(job_of_tree(_tree(_csv(tmp_path), columns=turned))).rows[0].tolist()
    assert rows == _expected(("years", "user")) != _expected()


def test_a_file_without_a_header_has_no_place_for_it(tmp_path: Path) -> None:
    columns = COLUMNS | {"years": {"kind": "bucket", "boundaries": [18, 25]}}
    job = job_of_tree(_tree(_csv(tmp_path, ""), header=False, columns=columns))
    assert read_all(job).rows[0].tolist() == _expected()


def test_prepared_the_same(tmp_path: Path) -> None:
    path = _csv(tmp_path)
    made = prepare_folder(job_of_tree(_tree(path)), tmp_path / "out")
    batches = list(batches_of(job_of_tree(_tree(path))))
    assert same_batches(batches, list(batches_of(on_folder(_tree(path), tmp_path / "out"))))
    # Without columns in the job file they are those of the folder, and names of the source are still known.
    bare = {"data": {"prepared": str(tmp_path / "out")}, "model": {"table_rows": ROWS}}
    assert same_batches(batches, list(batches_of(job_of_tree(bare))))
    cross = next(column for column in made.manifest.columns if column.name == "user_by_age")
    assert (cross.kind, cross.source, cross.table_rows) == ("categorical", "", ROWS)
    assert cross.transform == "combination of user, years"
    assert cross.hash_column == column_number("user_by_age")


def _table(name: str, **more: Any) -> Table:
    rows = 4 if "boundaries" in more else ROWS
    return Table(name, np.zeros((rows, 2), np.float32), "", integers_as_text=True, **more)


def test_rows_of_a_table_by_values() -> None:
    parts = [_table("user"), _table("years", boundaries=[18, 25])]
    table = _table("user_by_age", parts=parts)
    pairs = list(zip(USERS, AGES, strict=True))
    assert [table.hash(pair) for pair in pairs] == _expected()
    assert table.hash([None, None]) == table.hash(["", None])
    assert tuple(table.lookup_ids(pairs).shape) == (6, 2)
    with pytest.raises(TypeError, match=r"table user_by_age: 'ann' is not a list; give the values of"):
        table.hash("ann")
    with pytest.raises(ValueError, match=r"user_by_age: 1 values given; give those of \['user', 'years'\]"):
        table.hash(["ann"])
    with pytest.raises(TypeError, match="table years: '18' is not a number"):
        table.hash(["ann", "18"])
    with pytest.raises(TypeError, match=r"table user: \['ann'\] is not an id; give a list only for a cross"):
        parts[0].hash(["ann"])


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('kind = "cross"', "both.columns: [] given; give two or more different columns"),
        ('kind = "cross", columns = ["user", "user"]', "both.columns: ['user', 'user'] given"),
        (
            'kind = "cross", columns = ["user", "ages"]',
            "both.columns: 'ages' is not in data.columns; did you mean 'age'?",
        ),
        (
            'kind = "cross", columns = ["user", "age"]',
            'both.columns: \'age\' is of kind "dense"; give columns of kind "categorical" or',
        ),
        ('kind = "cross", columns = ["user", "both"]', "both.columns: 'both' is of kind \"cross\""),
        (
            'kind = "cross", columns = ["user", "place"], source = "user"',
            "both.source: given; a cross is made of the entries in columns",
        ),
        (
            'kind = "categorical", columns = ["user", "place"]',
            'both.columns: given; it is for kind "cross", this is "categorical"',
        ),
    ],
)
def test_refused_crosses(refusal: Callable[..., str], entry: str, said: str) -> None:
    text = (
        '[data]\nformat = "csv"\npath = "x.csv"\n[data.columns]\ny = "label"\nage = "dense"\n'
        f'user = "categorical"\nplace = "categorical"\nboth = {{ {entry} }}\n'
    )
    assert refusal(text).startswith(f"data.columns.{said}")
