"""Keys of growing tables in a prepared folder: the same batches as of the source, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.data.hashing import column_number, hash_bytes
from shadowsync.pipeline.data.prepared.manifest import read_prepared
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.pipeline.input.plan import plan_input
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.prepare.folder import STATISTICS_JSON
from shadowsync.pipeline.prepare.preparation import prepare_folder
from shadowsync.tests.support.data.prepared import Tree, batches_of, on_folder, same_batches

from .conftest import tagged_rows

COLUMNS: dict[str, Any] = {
    "y": "label",
    "price": "dense",
    "user": "categorical",
    "shop": "categorical",
    "user by shop": {"kind": "cross", "columns": ["user", "shop"]},
    "plain": "multi_hot",
    "tags": {"kind": "multi_hot", "weights": "scores", "max_ids": 3},
    "history": {"kind": "multi_hot", "source": "tags", "pooling": "none"},
}
GROWING = ("user", "user by shop", "tags", "history")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tagged_rows(tmp_path / "log.csv")


def job_tree(path: Path, growing: tuple[str, ...] = GROWING) -> Tree:
    return {
        "data": {"format": "csv", "path": str(path), "columns": COLUMNS, "span_bytes": 1 << 16},
        "model": {"table_rows": 100, "embedding_dim": 4},
        "tables": {name: {"kind": "growing"} for name in growing},
    }


@pytest.mark.parametrize("more", [{}, {"split": {"by": "fraction", "test": 0.2}}], ids=["all", "drawn"])
def test_the_same_batches_to_the_bit(log: Path, tmp_path: Path, more: dict[str, Any]) -> None:
    tree = job_tree(log)
    tree["data"] |= more
    prepare_folder(job_of_tree(job_tree(log)), tmp_path / "prepared")
    job, other = job_of_tree(tree), on_folder(tree, tmp_path / "prepared")
    want = list(batches_of(job))
    assert all(batch.keys.shape == (2, len(batch)) for batch in want)
    assert all(len(batch.bag_keys) == len(batch.bag_rows) for batch in want)
    assert same_batches(want, list(batches_of(other)))
    if more:
        assert same_batches(
            list(batches_of(job, plan_input(job).test)), list(batches_of(other, plan_input(other).test))
        )
    # The control: hashed tables have no keys.
    prepare_folder(job_of_tree(job_tree(log, ())), tmp_path / "hashed")
    assert not same_batches(want, list(batches_of(on_folder(job_tree(log, ()), tmp_path / "hashed"))))


def test_the_manifest_states_the_keys(log: Path, tmp_path: Path) -> None:
    manifest = prepare_folder(job_of_tree(job_tree(log)), tmp_path / "prepared").manifest
    assert manifest.order.growing == GROWING
    stored = {column.name: column.stored for column in manifest.columns if column.table_rows}
    assert stored == {
        "user": "uint64",
        "shop": "int32",
        "user by shop": "uint64",
        "plain": "list<int32>",
        "tags": "list<uint64>",
        "history": "list<uint64>",
    }
    read = pa.concat_tables(pq.read_table(tmp_path / "prepared" / part.name) for part in manifest.parts)
    users = [line.split(",")[2] for line in log.read_text("utf-8").splitlines()[1:]]
    number = column_number("user")
    assert read["user"].to_pylist() == [hash_bytes(number, user.encode()) for user in users]
    assert shared(tmp_path / "prepared") == {"shop", "plain"}
    plain = prepare_folder(job_of_tree(job_tree(log, ())), tmp_path / "hashed").manifest
    # As in folders without growing tables.
    assert "growing" not in plain.model_dump(mode="json")["order"]
    assert "growing" not in (tmp_path / "hashed" / "manifest.json").read_text("utf-8")
    assert shared(tmp_path / "hashed") == {*GROWING, "shop", "plain"}


def shared(folder: Path) -> set[str]:
    """The tables of which values are expected to share rows."""
    statistics = json.loads((folder / STATISTICS_JSON).read_text("utf-8"))
    return {column["name"] for column in statistics["ids"] if column["expected_shared"] > 0}


def test_a_folder_of_the_other_kind_is_refused(log: Path, tmp_path: Path) -> None:
    prepare_folder(job_of_tree(job_tree(log)), tmp_path / "growing")
    prepare_folder(job_of_tree(job_tree(log, ())), tmp_path / "hashed")
    with pytest.raises(
        JobFileError, match=r"table user is growing, in the folder hashed \(tables.user.kind\)"
    ):
        on_folder(job_tree(log), tmp_path / "hashed")
    with pytest.raises(
        JobFileError, match=r"table tags is hashed, in the folder growing \(tables.tags.kind\)"
    ):
        on_folder(job_tree(log, ("user", "user by shop", "history")), tmp_path / "growing")
    for folder, growing in (("hashed", GROWING), ("growing", ())):
        with pytest.raises(DataError, match="what differs: which tables grow"):
            prepare_folder(job_of_tree(job_tree(log, growing)), tmp_path / folder)


def test_a_growing_table_may_have_other_rows_than_in_the_folder(log: Path, tmp_path: Path) -> None:
    prepare_folder(job_of_tree(job_tree(log)), tmp_path / "prepared")
    tree = job_tree(log)
    # Without a number in the job the folder's holds.
    short = {key: value for key, value in tree.items() if key != "model"} | {"model": {"embedding_dim": 4}}
    assert on_folder(short, tmp_path / "prepared").column_rows == (100,) * 6
    tree["tables"] |= {"user": {"kind": "growing", "rows": 7}, "tags": {"kind": "growing", "rows": 9}}
    want = list(batches_of(job_of_tree(tree)))
    assert same_batches(want, list(batches_of(on_folder(tree, tmp_path / "prepared"))))
    tree["tables"] |= {"shop": {"rows": 7}}
    with pytest.raises(JobFileError, match="table shop has 7 rows, in the folder 100 rows"):
        on_folder(tree, tmp_path / "prepared")


def test_a_reader_of_before_is_told(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_folder(job_of_tree(job_tree(log)), tmp_path / "prepared")
    monkeypatch.setattr("shadowsync.pipeline.data.prepared.manifest.FORMAT_VERSION", 2)
    with pytest.raises(DataError, match="has version 3; this shadowsync reads versions up to 2"):
        read_prepared(str(tmp_path / "prepared"))


def test_a_job_without_sizes_takes_kinds_and_rows_from_the_folder(log: Path, tmp_path: Path) -> None:
    """Whether its tables grow, or did not when the folder was prepared."""
    unsized = job_tree(log) | {"model": {"embedding_dim": 4}, "tables": {}}
    for name, prepared in (("growing", unsized), ("some", job_tree(log)), ("none", job_tree(log, ()))):
        job = job_of_tree(prepared)
        prepare_folder(job, tmp_path / name)
        other = on_folder(unsized, tmp_path / name)
        assert (other.growing_tables, other.column_rows) == (job.growing_tables, job.column_rows)
        assert same_batches(list(batches_of(job)), list(batches_of(other)))
