"""Weights of the ids of lists: read as plain Python would, and what makes a bad row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.nodes.reader.deliveries import delivery_of, size_of
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.columns.fields import TextRules
from shadowsync.pipeline.data.columns.id_lists import IdBags
from shadowsync.pipeline.data.hashing import column_number, hash_bytes, table_rows_of
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.tests.support.data.schemas import read_all, schema_job, write_lines

RULES = TextRules(("", "?"), strip=True)
COLUMNS: dict[str, Any] = {
    "y": "label",
    "tags": {"kind": "multi_hot", "weights": "scores", "max_ids": 3},
    "plain": "multi_hot",
}
HEADER = "y,tags,scores,plain"

ITEMS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "?", ""]),
        st.one_of(st.floats(0, 1e6, width=32), st.sampled_from([-1.0, None])),
    ),
    max_size=6,
)


@given(st.lists(ITEMS, max_size=6), st.integers(1, 4), st.booleans(), st.booleans())
def test_weights_follow_the_ids_that_are_kept(
    lists: list[list[tuple[str, float | None]]], most: int, text: bool, last: bool
) -> None:
    # A text that is missing is an empty list, and cannot be a list of one missing item.
    lists = [own for own in lists if not text or len(own) > 1]
    ids: list[Any] = [[one for one, _ in own] for own in lists]
    weights: list[Any] = [[weight for _, weight in own] for own in lists]
    if text:
        ids = ["|".join(own) for own in ids]
        weights = ["|".join("" if w is None else repr(w) for w in own) for own in weights]
    id_type, weight_type = (
        (pa.string(), pa.string()) if text else (pa.list_(pa.string()), pa.list_(pa.float64()))
    )
    column = RULES.clean(pa.array(ids, id_type))
    bags = IdBags.of(column, RULES, delimiter="|", max_ids=most, keeps_last=last)
    found = bags.weights(RULES.clean(pa.array(weights, weight_type)), RULES, "|")
    kept = [
        [weight for one, weight in own if one not in ("", "?")][slice(-most, None) if last else slice(most)]
        for own in lists
    ]
    assert not found.unlike.any()
    assert found.owners.tolist() == [at for at, own in enumerate(kept) for _ in own]
    wanted = [np.nan if weight is None else weight for own in kept for weight in own]
    np.testing.assert_array_equal(found.values, wanted)
    bad = found.rows_where(~(found.values >= 0)).tolist()
    assert bad == [any(weight is None or weight < 0 for weight in own) for own in kept]
    usable = [weight if weight is not None and weight >= 0 else 0.0 for own in kept for weight in own]
    np.testing.assert_array_equal(found.usable(1e30), np.array(usable, np.float32))


def test_which_end_of_a_long_list_is_kept(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "log.csv", "1,a|b||c|d,,", "1,,,", "1,b,,", header=HEADER)
    kept = {}
    for keep in ("first", "last", None):
        columns = {"y": "label", "tags": {"kind": "multi_hot", "max_ids": 2, "keep": keep}}
        read = read_all(schema_job(file, columns=columns)).bags
        assert read.lengths.tolist() == [[2, 0, 1]]
        kept[keep] = read.rows.tolist()
    columns = {"y": "label", "tags": {"kind": "multi_hot"}}
    a, b, c, d, again = read_all(schema_job(file, columns=columns)).bags.rows.tolist()
    assert again == b
    assert kept == {"first": [a, b, b], None: [a, b, b], "last": [c, d, b]}


def test_lists_of_other_lengths_shift_no_others_weights() -> None:
    ids = pa.array([["a", "b"], ["c"], None, ["d", "", "e"], ["f"]])
    weights = pa.array([[1.0], [2.0], [9.0], [3.0, 7.0, 4.0], [5.0, 6.0]])
    found = IdBags.of(ids, RULES, delimiter="|", max_ids=9).weights(weights, RULES, "|")
    assert found.unlike.tolist() == [True, False, True, False, True]
    assert found.values.tolist() == [0, 0, 2, 3, 4, 0]


def test_text_and_parquet_give_the_same(tmp_path: Path) -> None:
    lines = ["1,a|b|c|d,1|2.5|0|4,p|q", "0,,,", "1,a||b,1||3,q", "0,b,7e-1,p"]
    read = read_all(schema_job(write_lines(tmp_path / "log.csv", *lines, header=HEADER), columns=COLUMNS))
    table = {
        "y": [1, 0, 1, 0],
        "tags": [["a", "b", "c", "d"], None, ["a", "", "b"], ["b"]],
        "scores": [[1.0, 2.5, 0.0, 4.0], [], [1.0, None, 3.0], [0.7]],
        "plain": [["p", "q"], [], ["q"], ["p"]],
    }
    file = tmp_path / "log.parquet"
    pq.write_table(pa.table(table), file)
    same = read_all(schema_job(file, "parquet", columns=COLUMNS))
    for one in (read, same):
        assert one.bags.lengths.tolist() == [[3, 0, 2, 1], [2, 0, 1, 1]]
        wanted = np.array([1, 2.5, 0, 1, 3, 0.7, 1, 1, 1, 1], np.float32)
        np.testing.assert_array_equal(one.bags.weights, wanted)
        assert one.bags.weights.dtype == np.float32
    np.testing.assert_array_equal(read.bags.rows, same.bags.rows)
    taken = read.take(np.array([3, 0], np.intp)).bags
    np.testing.assert_array_equal(taken.weights, np.array([0.7, 1, 2.5, 0, 1, 1, 1], np.float32))
    plain = {name: column for name, column in COLUMNS.items() if name != "tags"} | {"tags": "multi_hot"}
    assert not len(read_all(schema_job(tmp_path / "log.csv", columns=plain)).bags.weights), "the control"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("1,a|b,1,p", "tags.weights '1' is of another length than the list of tags"),
        ("1,a,,p", "tags.weights '' is of another length than the list of tags"),
        ("1,,1,p", "tags.weights '1' is of another length than the list of tags"),
        ("1,a|b,1|-2,p", "tags.weights '1|-2' is below 0 or not numeric"),
        ("1,a|b,1|,p", "tags.weights '1|' is below 0 or not numeric"),
        ("1,a,nan,p", "tags.weights 'nan' is below 0 or not numeric"),
        ("1,a,inf,p", "tags.weights 'inf' is below 0 or not numeric"),
        ("1,a,1e31,p", "tags.weights '1e31' is above 1e+30"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: str, said: str) -> None:
    lines = ["1,a,2,p", row, "0,b,3,q", "0,c,4,q"]
    path = write_lines(tmp_path / "log.csv", *lines, header=HEADER)
    bad = BadRows(1)
    read = read_all(schema_job(path, columns=COLUMNS), bad)
    assert bad.count == 1
    assert said in str(bad.first[0]), bad.first[0]
    assert read.bags.weights.tolist() == [2, 3, 4, 1, 1, 1]


def test_a_weight_of_a_dropped_id_may_be_anything(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.csv", "1,a||b|c|d,1|x|2|3|-4,p", header=HEADER)
    assert read_all(schema_job(path, columns=COLUMNS)).bags.weights.tolist() == [1, 2, 3, 1]


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        (pa.array([1.0]), "column scores has type double; the weights of tags need lists of numbers, or"),
        (pa.array([[["x"]]]), "column scores has type list<"),
        (None, "has no column 'scores'"),
    ],
)
def test_a_column_that_cannot_be_weights(tmp_path: Path, scores: pa.Array | None, said: str) -> None:
    columns = {"y": pa.array([1]), "tags": pa.array([["a"]]), "plain": pa.array([["p"]])}
    file = tmp_path / "log.parquet"
    pq.write_table(pa.table(columns | ({} if scores is None else {"scores": scores})), file)
    job = schema_job(file, "parquet", columns=COLUMNS)
    with pytest.raises(DataError) as caught:
        JobInput(job).plan(job.data.path)
    assert said in str(caught.value)
    assert "data.columns.tags.weights" in str(caught.value)


def test_a_text_file_without_the_column(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.csv", "1,a,p", header="y,tags,plain")
    job = schema_job(path, columns=COLUMNS)
    with pytest.raises(DataError, match="its header has no column 'scores'"):
        JobInput(job).plan(job.data.path)


def test_lists_of_growing_tables_keep_the_hashes_of_their_ids(tmp_path: Path) -> None:
    """And those of other tables have zeros there."""
    path = write_lines(tmp_path / "log.csv", "1,a|b|c|d,1|2|3|4,p|q", "0,,,", "1,a||b,1||3,q", header=HEADER)
    hashed = schema_job(path, columns=COLUMNS)
    tree = hashed.model_dump(mode="json", include={"data", "model"})
    growing = job_of_tree(tree | {"tables": {"tags": {"kind": "growing"}}})
    read, plain = read_all(growing), read_all(hashed)
    number = column_number("tags")
    keys = [hash_bytes(number, text) for text in (b"a", b"b", b"c", b"a", b"b")]
    assert read.bags.keys.tolist() == [*keys, 0, 0, 0]
    np.testing.assert_array_equal(read.bags.rows, plain.bags.rows)
    np.testing.assert_array_equal(
        read.bags.rows[:5], table_rows_of(read.bags.keys[None, :5], (1000,)).reshape(-1)
    )
    assert not len(plain.bags.keys)
    assert not len(read.keys)
    (batch,) = JobInput(growing).batches(
        *JobInput(growing).plan(growing.data.path),
        epoch=0,
        seed=1,
        batch=9,
        shuffle_window=9,
        bad_rows=BadRows(0),
    )
    assert sorted(batch.bag_keys.tolist()) == sorted([*keys, 0, 0, 0])
    delivered = delivery_of(1, 0, batch)
    np.testing.assert_array_equal(delivered.bag_keys, batch.bag_keys)
    assert size_of(batch) == size_of(replace(batch, bag_keys=batch.bag_keys[:0])) + 8 * 8
