"""Parts by the order of rows, by the id in a column, and by the last rows of each id."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.batches import split_by_id
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.input.plan import InputPlan, plan_input
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.prepare.preparation import prepare_folder

ROWS, USERS = 6000, 700
# The weight is the row's number.
COLUMNS: dict[str, Any] = {"y": "label", "item": "categorical", "user": "categorical", "w": "weight"}
Parts = dict[str, list[int]]
GROUP = "group"


def users_of() -> np.ndarray[Any, np.dtype[np.int64]]:
    """Some users have one row or two."""
    user = np.random.default_rng(5).zipf(1.3, ROWS) % USERS
    assert {1, 2} <= set(np.unique(user, return_counts=True)[1].tolist())
    return user


def log(folder: Path, kind: str) -> dict[str, Any]:
    """Several spans of two files; their rows' times fall."""
    user = users_of()
    columns = {
        "y": np.arange(ROWS) % 2,
        "item": [f"i{n % 13}{'x' * 30}" for n in range(ROWS)],
        "user": [f"u{n}" for n in user],
        "w": np.arange(ROWS),
        "t": 2_000_000_000 - np.arange(ROWS),
    }
    table, source = pa.table(columns), "parquet" if kind == "parquet" else "csv"
    for number, part in enumerate((table.slice(0, 2500), table.slice(2500))):
        path = folder / f"log{number}.{source}"
        if source == "parquet":
            pq.write_table(part, path, row_group_size=400)
        else:
            lines = [",".join(map(str, row.values())) for row in part.to_pylist()]
            path.write_text("\n".join([",".join(part.column_names), *lines]) + "\n")
    return {"format": source, "path": str(folder / f"log*.{source}"), "span_bytes": 1 << 16}


def job_of(folder: Path, kind: str, split: dict[str, Any], table: str = "growing", **data: Any) -> Job:
    section = {"columns": COLUMNS, **log(folder, kind), "split": split, **data}
    rows = {} if table == "growing" else {"rows": 1 << 22}
    tree = {"data": section, "tables": {"user": {"kind": table, **rows}}}
    if table == GROUP:
        # The model does not see it, and another group is before it.
        columns = {"other": {"kind": "group", "source": "item"}, **section["columns"], "user": "group"}
        tree = {"data": section | {"columns": columns}}
    if kind != "prepared":
        return job_of_tree(tree)
    prepare_folder(job_of_tree(tree), folder / "prepared")
    return job_of_tree(tree | {"data": tree["data"] | {"prepared": str(folder / "prepared")}})


def parts_of(job: Job, plan: InputPlan | None = None) -> Parts:
    """The rows of each part, each read by a reader of its own."""
    plan = plan_input(job) if plan is None else plan
    parts: Parts = {}
    for name in ("train", "validation", "test"):
        source = JobInput(job)
        parts[name] = [
            int(weight)
            for span in getattr(plan, name)
            for chunk in source.chunks(span, BadRows(0))
            for weight in chunk.examples.weights
        ]
    return parts


def check_each_row_once(parts: Parts) -> None:
    every = [row for rows in parts.values() for row in rows]
    assert sorted(every) == list(range(ROWS))
    assert all(parts.values())


def last_rows(*, reverse: bool) -> Parts:
    """As a loop over the rows finds them."""
    of_user = defaultdict(list)
    for row, user in enumerate(users_of().tolist()):
        of_user[user].append(row)
    parts: Parts = {"train": [], "validation": [], "test": []}
    for rows in of_user.values():
        ordered = rows[::-1] if reverse else rows
        cut = min(2, len(ordered) - 1)
        for name, one in zip(("test", "validation"), ordered[::-1][:cut], strict=False):
            parts[name].append(one)
        parts["train"] += ordered[: len(ordered) - cut]
    return {name: sorted(rows) for name, rows in parts.items()}


KINDS = ["csv", "parquet", "prepared"]


@pytest.mark.parametrize("table", ["growing", "hashed", GROUP])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_time", [False, True])
def test_the_last_rows_of_each_id_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, table: str, by_time: bool
) -> None:
    """By their times, or in the order of the files, whatever is kept in memory at once."""
    monkeypatch.setattr(split_by_id, "_LEAST_ROWS", 500)
    columns = {**COLUMNS, "t": "timestamp"} if by_time else COLUMNS
    job = job_of(tmp_path, kind, {"by": "last", "column": "user"}, table, columns=columns)
    parts = parts_of(job)
    check_each_row_once(parts)
    assert {name: sorted(rows) for name, rows in parts.items()} == last_rows(reverse=by_time)
    assert last_rows(reverse=True)["test"] != last_rows(reverse=False)["test"], "the control"


@pytest.mark.parametrize("table", ["growing", GROUP])
@pytest.mark.parametrize("kind", KINDS)
def test_all_rows_of_an_id_are_in_one_part(tmp_path: Path, kind: str, table: str) -> None:
    shares = {"validation": 0.2, "test": 0.3}
    parts = parts_of(job_of(tmp_path, kind, {"by": "column", "column": "user", **shares}, table))
    check_each_row_once(parts)
    user = users_of()
    of_part = {name: set(user[rows].tolist()) for name, rows in parts.items()}
    assert not of_part["train"] & of_part["validation"]
    assert not of_part["train"] & of_part["test"]
    assert not of_part["validation"] & of_part["test"]
    # The standard error of the shares of users is 0.02.
    count = len(set(user.tolist()))
    assert abs(len(of_part["validation"]) / count - 0.2) < 0.06
    assert abs(len(of_part["test"]) / count - 0.3) < 0.06
    # The control: rows that are drawn share users. Another seed draws others.
    drawn = parts_of(job_of(tmp_path, "csv", {"by": "fraction", **shares}))
    assert set(user[drawn["train"]].tolist()) & set(user[drawn["test"]].tolist())
    split = {"by": "column", "column": "user", **shares, "seed": 1}
    other = parts_of(job_of(tmp_path, "csv", split, table))
    assert other["test"] != parts["test"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_rows_of_the_files_are_the_test(tmp_path: Path, kind: str) -> None:
    parts = parts_of(job_of(tmp_path, kind, {"by": "order", "validation": 0.1, "test": 0.2}))
    check_each_row_once(parts)
    assert [rows[0] for rows in parts.values()] == [0, 4200, 4800]
    assert all(rows == sorted(rows) for rows in parts.values())


@pytest.mark.parametrize(
    ("split", "why"),
    [
        (
            {"by": "column", "column": "usr", "test": 0.2},
            r"column: 'usr' is no column of one id, nor of kind \"group\"; did you mean 'user'",
        ),
        ({"by": "last", "column": "w"}, r"data\.split\.column: 'w' is no column of one id"),
        ({"by": "last"}, r"data\.split\.column: not given; it is needed"),
        (
            {"by": "fraction", "column": "user", "test": 0.2},
            r'column: "user" given; it is for by =',
        ),
        ({"by": "last", "column": "user", "test": 0.2}, "leave validation and test out"),
        ({"by": "column", "column": "user"}, r'data\.split\.by: "column" given without parts'),
        ({"by": "order"}, r'data\.split\.by: "order" given without parts'),
    ],
)
def test_what_cannot_be_split_is_refused(tmp_path: Path, split: dict[str, Any], why: str) -> None:
    with pytest.raises(JobFileError, match=why):
        job_of(tmp_path, "csv", split)


def test_files_that_changed_since_the_plan_are_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path, "csv", {"by": "last", "column": "user"})
    plan, path = plan_input(job), tmp_path / "log1.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, *lines[1:]]))
    with pytest.raises(DataError, match="files are others than when the job planned its input"):
        list(JobInput(job).chunks(plan.test[-1], BadRows(0)))
