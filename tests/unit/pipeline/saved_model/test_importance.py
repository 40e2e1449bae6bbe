"""Importance of columns: what a model uses matters, as much as it uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.data.batch import Batch
from shadowsync.pipeline.data.formats.parquet import IdClass
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.report.rendering.importance import importance_in_words
from shadowsync.pipeline.saved_model.importance import permutation_importance
from shadowsync.pipeline.types import Float32Array, IndexArray

COLUMNS = {
    "a": "categorical",
    "b": "categorical",
    "a_b": {"kind": "cross", "columns": ["a", "b"]},
    "tags": {"kind": "multi_hot", "weights": "shares"},
    "x": "dense",
    "noise": "dense",
    "label": "label",
}
ROWS = 4_000


class CrossModel:
    """Scores a row by the row of a cross, by a dense feature, and by the weights of a list."""

    def __init__(self) -> None:
        tree = {"format": "parquet", "path": "x", "columns": COLUMNS}
        self.job = job_of_tree({"data": tree, "model": {"name": "dlrm", "table_rows": 1_000}})
        self.id_classes: Mapping[str, IdClass] = {"a": "text", "b": "text", "tags": "text"}
        self.folder = Path("x")
        names = [column.name for column in self.job.embedded_columns if column.name != "tags"]
        self._cross = names.index("a_b")

    def ids_without_row(self, batch: Batch) -> dict[str, tuple[int, int]]:  # noqa: ARG002
        """None: it has no tables."""
        return {}

    def logits(self, batch: Batch, owner: IndexArray | None = None) -> Float32Array:  # noqa: ARG002
        """2 for an even row of the cross, else -2; and a little more for a large x."""
        of_cross = np.where(batch.rows[self._cross] % 2 == 0, 2.0, -2.0)
        values: Float32Array = (of_cross + 0.5 * batch.dense[:, 0]).astype(np.float32)
        return values


def write_rows(path: Path, model: CrossModel, *, row_group_rows: int = 500) -> None:
    """Rows whose labels are drawn by the model's own probabilities."""
    rng = np.random.default_rng(3)
    columns = {
        "a": pa.array([f"a{k}" for k in rng.integers(0, 4, ROWS)]),
        "b": pa.array([f"b{k}" for k in rng.integers(0, 4, ROWS)]),
        "tags": pa.array([[f"t{k}"] * int(k % 3) for k in rng.integers(0, 9, ROWS)]),
        "x": pa.array(rng.standard_normal(ROWS)),
        "noise": pa.array(rng.standard_normal(ROWS)),
        "label": pa.array(np.zeros(ROWS, np.int64)),
    }
    columns["shares"] = pa.array([[1.0] * len(tags) for tags in columns["tags"].to_pylist()])
    table = pa.table(columns)
    pq.write_table(table, path)
    from shadowsync.pipeline.saved_model.prediction import predict_columns

    labels = (rng.random(ROWS) < predict_columns(model, table)).astype(np.int64)
    place = table.schema.get_field_index("label")
    pq.write_table(table.set_column(place, "label", pa.array(labels)), path, row_group_size=row_group_rows)


@pytest.fixture
def model() -> CrossModel:
    return CrossModel()


@pytest.fixture
def path(tmp_path: Path, model: CrossModel) -> Path:
    path = tmp_path / "rows.parquet"
    write_rows(path, model)
    return path


def test_what_the_model_uses_matters_as_much_as_it_uses_it(path: Path, model: CrossModel) -> None:
    measured = permutation_importance(model, [str(path)], rows=ROWS)
    assert measured.rows == ROWS
    assert measured.ne is not None
    assert 0.5 < measured.ne < 0.9
    by_name = {column.name: column for column in measured.columns}
    ne = {column.name: column.ne_increase or 0.0 for column in measured.columns}
    # a and b reach the model only through their cross.
    assert {"a", "b"} == {column.name for column in measured.columns[:2]}
    assert min(ne["a"], ne["b"]) > 5 * ne["x"] > 0
    assert by_name["a"].auc_decrease > by_name["x"].auc_decrease > 0
    for unused in ("tags", "noise"):
        assert by_name[unused].ne_increase == by_name[unused].auc_decrease == 0
    assert "shares" not in by_name
    assert measured.left_out == []


def test_scores_that_are_no_probabilities_have_no_ne(path: Path, model: CrossModel) -> None:
    assert permutation_importance(model, [str(path)], rows=ROWS).ne is not None
    own = model.job.model.model_copy(update={"loss": "own", "scores": "own"})
    model.job = model.job.model_copy(update={"model": own})
    measured = permutation_importance(model, [str(path)], rows=ROWS)
    assert measured.ne is None
    assert {(column.ne_increase, column.ne_deviation) for column in measured.columns} == {(None, None)}
    decreases = [column.auc_decrease for column in measured.columns]
    assert decreases == sorted(decreases, reverse=True)
    assert {"a", "b"} == {column.name for column in measured.columns[:2]}
    assert "(AUC " in importance_in_words(measured)


def test_the_label_is_said(path: Path, model: CrossModel) -> None:
    measured = permutation_importance(model, [str(path)], rows=500, repeats=1)
    assert " of label): how much worse" in importance_in_words(measured)


def test_the_same_seed_gives_the_same(path: Path, model: CrossModel) -> None:
    def measured(seed: int) -> str:
        return permutation_importance(model, [str(path)], rows=800, seed=seed).model_dump_json()

    assert measured(1) == measured(1) != measured(2)


def test_a_sample_is_of_all_parts_of_the_files(path: Path, model: CrossModel, tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    write_rows(other, model)
    assert permutation_importance(model, [str(path), str(other)], rows=1_000, repeats=1).rows == 1_000
    assert permutation_importance(model, [str(path), str(other)], rows=10**6, repeats=1).rows == 2 * ROWS


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("a", lambda a: pa.array(np.zeros(len(a), np.int64))),
        ("a", lambda a: a.combine_chunks().dictionary_encode()),
        ("a", lambda a: a.cast(pa.large_binary())),
        ("tags", lambda tags: pa.array([[1] * len(ids) for ids in tags.to_pylist()])),
        ("x", lambda x: x.cast(pa.float32())),
    ],
)
def test_files_of_other_types_are_read_as_predict_reads_them(
    path: Path, model: CrossModel, tmp_path: Path, name: str, other: Callable[[Any], Any]
) -> None:
    table, file = pq.read_table(path), tmp_path / "other.parquet"
    pq.write_table(table.set_column(table.schema.get_field_index(name), name, other(table[name])), file)
    found = permutation_importance(model, [str(path), str(file)], rows=1_000, repeats=1)
    assert (found.rows, found.left_out) == (1_000, [])


def test_types_that_cannot_be_joined_are_refused(path: Path, model: CrossModel, tmp_path: Path) -> None:
    model.id_classes = {}
    table, file = pq.read_table(path), tmp_path / "other.parquet"
    pq.write_table(table.set_column(0, "a", pa.array(np.zeros(ROWS, np.int64))), file)
    with pytest.raises(DataError, match=r"have a column of several types, .* Field a has incompatible types"):
        permutation_importance(model, [str(path), str(file)], rows=1_000, repeats=1)


def test_no_exchange_begins_after_the_time(path: Path, model: CrossModel) -> None:
    times = iter(range(1000))
    measured = permutation_importance(
        model, [str(path)], rows=500, repeats=2, seconds=3.0, now=lambda: float(next(times))
    )
    # The first reading is the beginning.
    assert len(measured.columns) == 3
    assert len(measured.left_out) == 2
    assert {column.repeats for column in measured.columns} == {1}
    times = iter(range(1000))
    measured = permutation_importance(
        model, [str(path)], rows=500, repeats=2, seconds=7.0, now=lambda: float(next(times))
    )
    assert sorted(column.repeats for column in measured.columns) == [1, 1, 1, 2, 2]
    assert measured.left_out == []


def test_rows_without_labels_are_refused(path: Path, model: CrossModel, tmp_path: Path) -> None:
    bare = tmp_path / "bare.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["label"]), bare)
    with pytest.raises(DataError, match="no row has a label and a score"):
        permutation_importance(model, [str(bare)])
    same = tmp_path / "same.parquet"
    table = pq.read_table(path)
    pq.write_table(table.filter(pa.compute.equal(table["label"], 1)), same)
    with pytest.raises(DataError, match="labels of the sample are the same; give files with both labels"):
        permutation_importance(model, [str(same)])
    with pytest.raises(DataError, match="no label 'sold'"):
        permutation_importance(model, [str(path)], label="sold")
