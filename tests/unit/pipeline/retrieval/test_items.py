"""Items of a catalogue: from a file with the item's columns alone, or from rows; what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.batches.cutter import batch_of
from shadowsync.pipeline.data.batches.split_by_id import IdReader
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.input.plan import plan_input
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.retrieval.items import Identities, ItemReader, Items, items_of_files, items_of_rows
from shadowsync.pipeline.types import BatchId

COLUMNS: dict[str, Any] = {
    "user": "categorical",
    "film": {"kind": "categorical", "source": "film_id"},
    "tags": {"kind": "multi_hot", "delimiter": "|", "weights": "strengths"},
    "age": "dense",
    "price": {"kind": "dense", "transform": "none"},
    "seen": {"kind": "multi_hot", "delimiter": "|", "weights": "times"},
    "y": "label",
}
MODEL = {"name": "two_tower", "query": ["user", "age", "seen"], "item": ["film", "tags", "price"]}


def job_of(path: Path, tables: str = "growing", model: dict[str, Any] = MODEL, **data: Any) -> Job:
    """A job whose rows are in `path`."""
    section = {"format": "csv", "path": str(path), "columns": COLUMNS, "missing": ["", "none"]} | data
    return job_of_tree({"data": section, "model": {"table_kind": tables, "table_rows": 50, **model}})


def items(tmp_path: Path, *lines: str, header: str = "film_id,tags,strengths,price") -> Items:
    file = tmp_path / "items.csv"
    file.write_text("".join(f"{line}\n" for line in (header, *lines)))
    return items_of_files(job_of(file), {}, [str(file)])


@pytest.mark.parametrize("tables", ["growing", "hashed"])
def test_a_file_needs_the_columns_of_items_alone(tmp_path: Path, tables: str) -> None:
    """And an item there is what it is in a row with all columns."""
    whole, alone = tmp_path / "rows.csv", tmp_path / "items.csv"
    whole.write_text(
        "user,film_id,tags,strengths,age,price,seen,times,y\n"
        "u1,f1,a|b,1|2,30,2.5,x|y,1|1,1\nu2,f2,,,40,3,x,2,0\nu3,f1,c,1,50,9,,,1\n"
    )
    alone.write_text("price,other,film_id,tags,strengths\n3,o,f2,,\n2.5,o,f1,a|b,1|2\n")
    job = job_of(whole, tables)
    of_file = items_of_files(job, {}, [str(alone)])
    of_rows = items_of_rows(job, plan_input(job).train)
    assert of_file.ids is not None
    assert of_file.ids.to_pylist() == ["f2", "f1"]
    assert of_rows.ids is None
    assert len(of_file) == len(of_rows) == 2
    assert of_rows.identities.tolist() == of_file.identities.tolist()[::-1]
    (file_part,), (rows_part,) = of_file.examples, of_rows.examples
    np.testing.assert_array_equal(file_part.dense[:, 1], rows_part.dense[::-1, 1])
    np.testing.assert_array_equal(file_part.bags.lengths[0], [0, 2])
    np.testing.assert_array_equal(rows_part.bags.lengths[0], [2, 0])
    np.testing.assert_array_equal(file_part.bags.weights, [1, 2])
    assert file_part.bags.lengths[1].tolist() == [0, 0], "what a query has is missing in a file of items"
    assert rows_part.bags.lengths[1].tolist() == [2, 1]
    assert rows_part.dense[0, 1] == 2.5, "of the first of an item's rows"


@pytest.mark.parametrize("tables", ["growing", "hashed"])
def test_identities_are_those_of_the_loss(tmp_path: Path, tables: str) -> None:
    file = tmp_path / "items.csv"
    file.write_text("film_id,tags,strengths,price\n" + "".join(f"f{n},,,1\n" for n in range(40)))
    job = job_of(file, tables)
    found = items_of_files(job, {}, [str(file)])
    (part,) = found.examples
    batch = batch_of(BatchId(0, 0, 0, 0), part)
    of_loss = IdReader(job.embedded_columns, job.model.item[0])
    np.testing.assert_array_equal(found.identities, of_loss(batch).view(np.int64))
    np.testing.assert_array_equal(found.identities, ItemReader(job)(part))
    shared = len(set(found.identities.tolist())) < 40
    assert shared is (tables == "hashed"), "ids that share a row are told apart by their ids alone"


def test_a_file_without_a_header_may_have_the_columns_of_items_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "items.csv"
    file.write_text("2,f1,a,2.5\n1,f2,b,3\n")
    columns = {"strengths": "ignored", **COLUMNS, "film": "categorical", "times": "ignored"}
    job = job_of(file, header=False, columns=columns)
    found = items_of_files(job, {}, [str(file)])
    assert found.ids is not None
    assert found.ids.to_pylist() == ["f1", "f2"]
    assert found.examples[0].dense[:, 1].tolist() == [2.5, 3.0]
    assert found.examples[0].bags.weights.tolist() == [2.0, 1.0]


def test_parquet_keeps_the_type_of_ids(tmp_path: Path) -> None:
    file = tmp_path / "items.parquet"
    table = {"film_id": pa.array([5, 7]), "tags": pa.array([["a"], None]), "price": [1.0, 2.0]}
    pq.write_table(pa.table(table | {"strengths": pa.array([[1.0], None])}), file)
    found = items_of_files(job_of(file, format="parquet"), {}, [str(file)])
    assert found.ids == pa.array([5, 7])
    texts = {"film_id": pa.array(["5", "7"]), "strengths": pa.array([[1.0], None])}
    pq.write_table(pa.table(table | texts), file)
    with pytest.raises(DataError, match="column 'film_id' has texts"):
        items_of_files(job_of(file, format="parquet"), {"film": "integer"}, [str(file)])


HIGH = 2**63 + 5


@pytest.mark.parametrize(
    ("first", "second", "ids"),
    [
        (pa.array([5], pa.int32()), pa.array([2**40], pa.int64()), pa.array([5, 2**40])),
        (pa.array([5], pa.int64()), pa.array([HIGH], pa.uint64()), pa.array([5, HIGH], pa.uint64())),
        (pa.array(["a"]), pa.array(["b"], pa.large_string()), pa.array(["a", "b"], pa.large_string())),
        (pa.array(["a"]).dictionary_encode(), pa.array([b"b"]), pa.array(["a", "b"], pa.large_string())),
        (pa.array([-5], pa.int64()), pa.array([HIGH], pa.uint64()), None),
        (pa.array([7]), pa.array(["a"]), None),
        # These two are the same id, if training read texts.
        (pa.array([7]), pa.array(["7"]), None),
    ],
)
def test_files_with_other_types_of_ids(
    tmp_path: Path, first: pa.Array, second: pa.Array, ids: pa.Array | None
) -> None:
    files = [str(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    for file, column in zip(files, (first, second), strict=True):
        more = {"tags": [["t"]], "strengths": [[1.0]], "price": [1.0]}
        pq.write_table(pa.table({"film_id": column} | more), file)
    job = job_of(tmp_path / "a.parquet", format="parquet")
    if ids is not None:
        assert items_of_files(job, {"film": "text"}, files).ids == ids
        return
    with pytest.raises(DataError, match=r"the ids \(film_id\) do not fit one type: they are "):
        items_of_files(job, {"film": "text"}, files)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["f1,,,1", "f2,,,1", "f1,,,2"], r"items\.csv:4: has the item 'f1', as row 2 of .*items\.csv has"),
        (["f1,,,1", ",,,1"], r"items\.csv:3: the item has no id \(film_id\)"),
        (["none,,,1", "f1,,,1"], r"items\.csv:2: the item has no id"),
        (["f1,,,1", "f2,,,cheap"], r"items\.csv:3: price 'cheap' not numeric"),
        (["f1,,,1", "f2,,1"], r"items\.csv:3: .*3 columns, not 4"),
        (["f1,a|b,1,1"], r"items\.csv:2: tags\.weights '1' of another length"),
        ([], "has no items"),
    ],
)
def test_what_is_no_file_of_items_is_refused_by_its_row(tmp_path: Path, lines: list[str], said: str) -> None:
    assert len(items(tmp_path, "f1,,,1", "f2,,,1")) == 2, "the control"
    with pytest.raises(DataError, match=said):
        items(tmp_path, *lines)


def test_a_column_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no column 'film_id'"):
        items(tmp_path, "f1,,,1", header="film,tags,strengths,price")
    with pytest.raises(DataError, match="has no column 'strengths'"):
        items(tmp_path, "f1,,1", header="film_id,tags,price")


def test_an_id_that_is_made_of_others_is_in_no_file(tmp_path: Path) -> None:
    file = tmp_path / "items.csv"
    file.write_text("film_id,tags,strengths,price\nf1,,,1\n")
    columns = COLUMNS | {"both": {"kind": "cross", "columns": ["user", "film"]}}
    job = job_of(file, model=MODEL | {"item": ["both", "film", "tags", "price"]}, columns=columns)
    with pytest.raises(DataError, match="'both' is made of other columns"):
        items_of_files(job, {}, [str(file)])


def test_rows_without_any_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("user,film_id,tags,strengths,age,price,seen,times,y\nu1,f1,,,1,1,,,1\n")
    with pytest.raises(DataError, match="no row"):
        items_of_rows(job_of(file), [])


def test_a_set_of_identities_says_which_are_new() -> None:
    draw = np.random.default_rng(1)
    known, kept = set[int](), Identities()
    for _ in range(50):
        values = draw.integers(-300, 300, 40)
        new = kept.add(values)
        assert set(values[new].tolist()) == set(values.tolist()) - known
        assert new.sum() == len(set(values.tolist()) - known)
        firsts = [np.flatnonzero(values == value)[0] for value in values[new]]
        assert firsts == np.flatnonzero(new).tolist()
        known |= set(values.tolist())
    assert len(known) > 500, "the control"


def test_an_id_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "items.parquet"
    ids = pa.array([b"f1", b"caf\xe9"], pa.binary()).view(pa.string())
    table = {"film_id": ids, "tags": ["", ""], "strengths": ["", ""], "price": [1.0, 2.0]}
    pq.write_table(pa.table(table), file)
    with pytest.raises(DataError, match=r"items\.parquet:2: its id is not UTF-8"):
        items_of_files(job_of(file, format="parquet"), {}, [str(file)])
