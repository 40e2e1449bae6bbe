"""Weights of items in a prepared folder: the same batches as of the source, and the version that has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.data.prepared.manifest import read_prepared
from shadowsync.pipeline.data.prepared.part_reader import read_part
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.prepare.preparation import prepare_folder
from shadowsync.tests.support.data.prepared import Tree, batches_of, on_folder, same_batches

from .conftest import tagged_rows

COLUMNS: dict[str, Any] = {
    "y": "label",
    "plain": "multi_hot",
    "tags": {"kind": "multi_hot", "weights": "scores", "max_ids": 3},
    "more": {"kind": "multi_hot", "weights": "scores", "source": "tags", "pooling": "mean"},
    "history": {"kind": "multi_hot", "source": "tags", "pooling": "none"},
}


def job_tree(path: Path, columns: dict[str, Any] = COLUMNS) -> Tree:
    data = {"format": "csv", "path": str(path), "columns": columns, "span_bytes": 1 << 16}
    return {"data": data, "model": {"table_rows": 100, "embedding_dim": 4}}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tagged_rows(tmp_path / "log.csv", bad_every=500)


def test_the_same_batches_to_the_bit(log: Path, tmp_path: Path) -> None:
    tree = job_tree(log)
    done = prepare_folder(job_of_tree(tree), tmp_path / "prepared")
    assert done.manifest.bad_rows == 6
    job, other = job_of_tree(tree), on_folder(tree, tmp_path / "prepared")
    want = list(batches_of(job))
    assert all(len(batch.item_weights) == len(batch.bag_rows) > 0 for batch in want)
    assert same_batches(want, list(batches_of(other)))
    stated = {column.name: column for column in done.manifest.columns}
    assert (stated["tags:weights"].kind, stated["tags:weights"].source) == ("item_weights", "scores")
    # The control: without weights the batches differ.
    plain = job_tree(log, {"y": "label", "plain": "multi_hot"})
    prepare_folder(job_of_tree(plain), tmp_path / "plain")
    assert not same_batches(want, list(batches_of(on_folder(plain, tmp_path / "plain"))))


def test_a_job_with_other_weights_is_refused(log: Path, tmp_path: Path) -> None:
    prepare_folder(job_of_tree(job_tree(log)), tmp_path / "prepared")
    columns = COLUMNS | {"tags": {"kind": "multi_hot", "max_ids": 3}}
    with pytest.raises(JobFileError, match=r"data.columns.tags.weights is '', in the folder 'scores'"):
        on_folder(job_tree(log, columns), tmp_path / "prepared")


@pytest.mark.parametrize("harm", ["a weight too few", "below 0", "nan"])
def test_weights_that_do_not_fit_the_ids(log: Path, tmp_path: Path, harm: str) -> None:
    prepare_folder(job_of_tree(job_tree(log)), tmp_path / "prepared")
    manifest = read_prepared(str(tmp_path / "prepared"))
    part = manifest.parts[0]
    path = tmp_path / "prepared" / part.name
    table = pq.read_table(path)
    at = table.column_names.index("more:weights")
    lists = table.column(at).to_pylist()
    row = next(row for row, own in enumerate(lists) if len(own) > 1)
    if harm == "a weight too few":
        lists[row] = lists[row][1:]
    else:
        lists[row][0] = -1.0 if harm == "below 0" else float("nan")
    changed = table.set_column(at, table.schema.field(at), pa.array(lists, table.schema.field(at).type))
    pq.write_table(changed, path)
    with pytest.raises(DataError, match=r"column more:weights has not one weight of at least 0 for each id"):
        list(read_part(str(path), part, manifest, {}))
