"""Several labels of a row stay with it: through parsing, shuffling, sorting, cutting and prepared parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shadowsync.nodes.reader.deliveries import delivery_of, size_of
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.batch import Batch, label_columns
from shadowsync.pipeline.data.hashing import hash_bytes
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.wire.frames import decode, encode
from shadowsync.pipeline.wire.messages import Delivery
from shadowsync.tests.support.data.prepared import batches_of, check_prepared, on_folder
from shadowsync.tests.support.data.schemas import read_all, schema_job, write_lines

ROWS = 1000
COLUMNS: dict[str, Any] = {
    "odd": "label",
    "n": {"kind": "dense", "transform": "none"},
    "third": {"kind": "label", "positive": ["yes"], "negative": ["no"]},
    "user": "categorical",
    "late": {"kind": "label", "source": "n", "expression": "n >= 700"},
    "at": "timestamp",
}
HEADER = "odd,n,third,user,at"


def lines_of(rows: range) -> list[str]:
    """Rows whose labels follow from the number; by time they are in another order."""
    return [
        f"{n % 2},{n},{'yes' if n % 3 == 0 else 'no'},u{n % 7},{hash_bytes(0, str(n).encode()) % 10**6}"
        for n in rows
    ]


def tree_of(log: Path, **data: Any) -> dict[str, dict[str, Any]]:
    section = {"format": "csv", "path": str(log), "columns": COLUMNS, "span_bytes": 1 << 16}
    return {
        "data": section | data,
        "model": {"name": "mmoe", "table_rows": 300, "embedding_dim": 4},
        "trainer": {"batch": 64},
    }


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "log.csv", *lines_of(range(ROWS)), header=HEADER)


def check(batches: list[Batch], rows: int = ROWS) -> list[int]:
    """Each example has the labels of its number; gives the numbers in order."""
    found: list[int] = []
    for batch in batches:
        numbers = batch.dense[:, 0].astype(int)
        expected = np.stack([numbers % 2 == 1, numbers % 3 == 0, numbers >= 700], axis=1)
        labels = label_columns(batch.labels, batch.other_labels)
        assert labels.dtype == np.float32
        np.testing.assert_array_equal(labels, expected)
        found += numbers.tolist()
    assert sorted(found) == list(range(rows))
    return found


@pytest.mark.parametrize("window", [0, 300])
def test_rows_as_they_are_cut(log: Path, window: int) -> None:
    found = check(list(batches_of(job_of_tree(tree_of(log)), window=window)))
    assert (found == list(range(ROWS))) == (window == 0)


def test_rows_sorted_by_time(log: Path) -> None:
    found = check(list(batches_of(job_of_tree(tree_of(log, order="time")), window=0)))
    assert found != list(range(ROWS)), "the control"


def test_prepared_parts_are_the_same(log: Path, tmp_path: Path) -> None:
    batches, _ = check_prepared(tree_of(log), tmp_path / "prepared")
    check(batches)
    # The weight of a loss belongs to the model, not to the rows.
    heavier = {**COLUMNS, "late": {**COLUMNS["late"], "loss_weight": 3.0}}
    assert on_folder(tree_of(log, columns=heavier), tmp_path / "prepared").data.loss_weights == (1, 1, 3)
    turned = {"late": COLUMNS["late"], **COLUMNS}
    with pytest.raises(JobFileError, match="order"):
        on_folder(tree_of(log, columns=turned), tmp_path / "prepared")


def test_a_row_without_one_of_its_labels_is_bad(tmp_path: Path) -> None:
    lines = [*lines_of(range(4)), "1,4,maybe,u1,5", "1,5,,u1,5", "2,6,yes,u1,5", ",7,yes,u1,5"]
    path, bad = write_lines(tmp_path / "log.csv", *lines, header=HEADER), BadRows(4)
    assert len(read_all(job_of_tree(tree_of(path)), bad)) == 4
    assert [row.why for row in bad.first] == [
        "third 'maybe' is neither its positive nor its negative values",
        "third '' is missing, and each row needs a label",
        "odd '2' is neither 0 nor 1",
        "odd '' is neither 0 nor 1",
    ]


def test_one_label_has_no_others(tmp_path: Path) -> None:
    lines = ["5,30,ann,a|b,2026-01-01,1", "1,,bob,,86400,0.5"]
    examples = read_all(schema_job(write_lines(tmp_path / "log.csv", *lines)))
    assert examples.other_labels.shape == (0, 0)
    assert label_columns(examples.labels, examples.other_labels) is examples.labels


def test_as_they_are_sent(log: Path) -> None:
    (batch, *_) = batches_of(job_of_tree(tree_of(log)))
    sent = delivery_of(1, 0, batch)
    got = decode([bytes(frame) for frame in encode(sent)])
    assert isinstance(got, Delivery)
    np.testing.assert_array_equal(got.other_labels, batch.other_labels)
    assert got.other_labels.shape == (2, 64)
    arrays = (batch.labels, batch.dense, batch.rows, batch.other_labels)
    assert size_of(batch) == sum(array.nbytes for array in arrays)
