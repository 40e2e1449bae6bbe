"""Ids of columns that share a table: the same rows and keys, of one type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.schema import Examples
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.jobfile.load import job_of_tree

HISTORY = {"kind": "multi_hot", "table": "item"}
TEXTS = {"clicked": [1, 0, 1], "item": ["a", "b", None], "history": ["b|a", "", "c|a"]}


def job_of(path: Path, kind: str, **columns: Any) -> Job:
    """The job of a file; `kind` is that of its tables."""
    form = path.suffix.removeprefix(".")
    data = {"format": form, "path": [str(path)], "columns": {"clicked": "label", **columns}}
    return job_of_tree(
        {"data": data | {"shuffle_window": 0}, "model": {"table_rows": 500, "table_kind": kind}}
    )


def written(path: Path, columns: dict[str, Any]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
        return path
    lines = [",".join(columns)]
    lines += [
        ",".join("" if one is None else str(one) for one in row)
        for row in zip(*columns.values(), strict=True)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def examples_of(job: Job) -> Examples:
    source = JobInput(job)
    (span,) = source.plan(job.data.path)
    (chunk,) = source.chunks(span, BadRows(0))
    return chunk.examples


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("table", ["item", ""])
def test_an_id_is_the_same_row_and_key_in_both(tmp_path: Path, suffix: str, table: str) -> None:
    """The control: with a table of its own, its rows are others."""
    file = written(tmp_path / f"log.{suffix}", TEXTS)
    columns = {"history": HISTORY | {"table": table}, "item": "categorical"}
    hashed = examples_of(job_of(file, "hashed", **columns))
    a, b, missing = hashed.rows[0].tolist()
    assert (hashed.bags.rows[:2].tolist() == [b, a]) == bool(table)
    assert (int(hashed.bags.rows[3]) == a) == bool(table)
    assert missing not in (a, b)
    growing = examples_of(job_of(file, "growing", **columns))
    assert (growing.bags.keys[:2].tolist() == growing.keys[0][[1, 0]].tolist()) == bool(table)
    assert growing.rows.tolist() == hashed.rows.tolist()


def test_crosses_of_columns_that_share_a_table_may_share_one_too(tmp_path: Path) -> None:
    file = written(
        tmp_path / "log.csv", {"clicked": [1, 0], "user": ["u", "v"], "a": ["x", "y"], "b": ["y", "x"]}
    )
    columns: dict[str, Any] = {
        "user": "categorical",
        "a": "categorical",
        "b": {"kind": "categorical", "table": "a"},
        "one": {"kind": "cross", "columns": ["a", "b"]},
        "other": {"kind": "cross", "columns": ["b", "a"], "table": "one"},
    }
    _, _, _, one, other = examples_of(job_of(file, "hashed", **columns)).rows.tolist()
    assert one == other[::-1]
    assert one != other


MANY = pa.list_(pa.int64())


@pytest.mark.parametrize(
    ("item", "history", "said"),
    [
        (
            ["1", "2"],
            pa.array([[1], [2]], MANY),
            "column history has integer ids, and column item, with the same",
        ),
        (
            [1, 2],
            ["1|2", "2"],
            "column history has text ids, and column item, with the same table, integer ids",
        ),
        ([1, 2], pa.array([[1], [2]], MANY), ""),
        ([1, 2], pa.array([[1], [2]], pa.list_(pa.uint8())), ""),
        (["1", "2"], pa.array([["1"], ["2"]]), ""),
        # Without a value there is no type.
        (pa.nulls(2), pa.array([[1], [2]], MANY), ""),
    ],
)
def test_texts_and_integers_of_one_id_are_refused(tmp_path: Path, item: Any, history: Any, said: str) -> None:
    file = written(tmp_path / "log.parquet", {"clicked": [1, 0], "item": item, "history": history})
    job = job_of(file, "hashed", item="categorical", history=HISTORY)
    apart = job_of(file, "hashed", item="categorical", history=HISTORY | {"table": ""})
    JobInput(apart).plan(apart.data.path)
    if not said:
        JobInput(job).plan(job.data.path)
        return
    with pytest.raises(DataError, match=said) as caught:
        JobInput(job).plan(job.data.path)
    assert "write both as texts or both as integers" in str(caught.value)


def test_types_are_those_of_all_files(tmp_path: Path) -> None:
    """A file that lacks the values of one column says nothing about the other's."""
    written(tmp_path / "a.parquet", {"clicked": [1], "item": [1], "history": pa.nulls(1)})
    second = written(tmp_path / "b.parquet", {"clicked": [1], "item": pa.nulls(1), "history": ["1|2"]})
    job = job_of(second, "hashed", item="categorical", history=HISTORY)
    JobInput(job).plan([str(second)])
    with pytest.raises(DataError, match=r"column history has text ids, and column item"):
        JobInput(job).plan([str(tmp_path / "*.parquet")])


def test_integers_have_one_hash_whatever_their_width(tmp_path: Path) -> None:
    history = pa.array([[7], [8]], pa.list_(pa.int32()))
    file = written(
        tmp_path / "log.parquet", {"clicked": [1, 0], "item": np.array([7, 8]), "history": history}
    )
    examples = examples_of(job_of(file, "hashed", item="categorical", history=HISTORY))
    assert examples.rows[0].tolist() == examples.bags.rows.tolist()
