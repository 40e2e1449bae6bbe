"""The rows of files to be scored: all of them, in order, with what is wrong with those that have no score."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.batches.span_plan import plan_spans
from shadowsync.pipeline.data.formats.parquet import IdClass
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.saved_model.input_rows import (
    InputRows,
    InputSchema,
    input_schema,
    read_input,
    rows_of_columns,
    value_array,
)

COLUMNS = {
    "when": "timestamp",
    "user": "categorical",
    "tags": {"kind": "multi_hot", "delimiter": "|"},
    "price": "dense",
    "weight": "weight",
    "clicked": "label",
}


TEXTS: dict[str, IdClass] = {"user": "text", "tags": "text"}
INTEGERS: dict[str, IdClass] = {"user": "integer", "tags": "integer"}


def schema_of(id_classes: Mapping[str, IdClass] = TEXTS, model: str = "dlrm", **data: Any) -> InputSchema:
    """Of a job over CSV files with COLUMNS."""
    tree = {"format": "csv", "path": "x.csv", "columns": COLUMNS} | data
    job = job_of_tree({"data": tree, "model": {"name": model, "table_rows": 100}})
    return input_schema(job, id_classes)


def read(file: Path, schema: InputSchema, *keep: str) -> list[InputRows]:
    """All chunks of a file."""
    spans = plan_spans([str(file)], schema.data.format, 1 << 20)
    return [rows for span in spans for rows in read_input(span, schema, keep)]


def test_only_what_the_model_sees_is_needed(tmp_path: Path) -> None:
    """Neither a label, nor a weight, nor a time; in whatever order, with others beside them."""
    file = tmp_path / "x.csv"
    file.write_text("price,other,tags,user\n3,a,x|y,u1\n,b,,u2\n")
    (rows,) = read(file, schema_of(), "other")
    assert rows.numbers.tolist() == [2, 3]
    assert rows.scored.tolist() == [0, 1]
    assert rows.examples.dense.tolist() == [[pytest.approx(np.log(4), rel=1e-6)], [0.0]]
    assert rows.examples.bags.lengths.tolist() == [[2, 0]]
    assert np.isnan(rows.labels).all()
    assert rows.kept["other"].to_pylist() == ["a", "b"]


def test_bad_rows_have_their_places_and_the_others_keep_theirs(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    lines = ["user,tags,price,clicked", "u1,x,1,1", "u2,x,2", "", "u3,x,cheap,0", "u4,x,4,maybe", '"u5,x,5,1']
    file.write_text("\n".join(lines) + "\n")
    (rows,) = read(file, schema_of(), "price")
    assert rows.numbers.tolist() == [2, 3, 5, 6, 7], "a line without a character is no row"
    assert rows.scored.tolist() == [0, 3], "a label that is none takes no score away"
    assert sorted(rows.why) == [1, 2, 4]
    assert "3 columns, not 4" in rows.why[1]
    assert "price 'cheap'" in rows.why[2]
    assert "quotes" in rows.why[4]
    np.testing.assert_array_equal(rows.labels[0], [1, np.nan, 0, np.nan, np.nan])
    assert rows.kept["price"].to_pylist() == ["1", None, "cheap", "4", None]


def test_a_block_of_bad_lines_only(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("user,tags,price\na,b\na,b,c,d\n")
    (rows,) = read(file, schema_of(), "user")
    assert rows.numbers.tolist() == [2, 3]
    assert len(rows.examples) == len(rows.scored) == 0
    assert sorted(rows.why) == [0, 1]
    assert rows.kept["user"].to_pylist() == [None, None]


def test_without_a_header_the_label_may_be_absent(tmp_path: Path) -> None:
    schema = schema_of(header=False)
    file = tmp_path / "x.csv"
    found = []
    for text in ("1,u1,x,3,1,1\n", "1,u1,x,3,1\n"):
        file.write_text(text)
        (rows,) = read(file, schema)
        found.append((rows.examples.rows.tolist(), rows.examples.dense.tolist()))
        assert rows.numbers.tolist() == [1]
        assert np.isnan(rows.labels[0, 0]) == (text.count(",") == 4)
    assert found[0] == found[1]
    file.write_text("1,u1,x,3\n")
    assert "4 columns, not 6" in read(file, schema)[0].why[0], "the control"


def test_without_a_header_a_label_made_of_a_needed_column_takes_none_away(tmp_path: Path) -> None:
    """Of the two labels' columns only that which the model does not need may be absent."""
    dear = {"kind": "label", "source": "price", "threshold": 5}
    schema = schema_of(model="mmoe", columns=COLUMNS | {"dear": dear}, header=False)
    file = tmp_path / "x.csv"
    for text in ("1,u1,x,7,1,1\n", "1,u1,x,7,1\n"):
        file.write_text(text)
        (rows,) = read(file, schema)
        assert rows.scored.tolist() == [0], rows.why
        assert rows.labels[1].tolist() == [1]
    file.write_text("1,u1,x,1\n")
    assert "4 columns, not 6" in read(file, schema)[0].why[0], "the control"


def _rows(schema: InputSchema, user: pa.Array, tags: pa.Array) -> tuple[list[list[int]], list[int]]:
    columns = {"user": user, "tags": tags, "price": pa.array([1.0] * len(user))}
    found = rows_of_columns(columns, schema, [], "here", np.arange(len(user)))
    return found.examples.rows.tolist(), found.examples.bags.rows.tolist()


USERS = pa.array([7, None, 8])
TAGS = pa.array([[1, 2], None, [3]])


@pytest.mark.parametrize(
    ("user", "tags"),
    [
        (USERS, TAGS),
        (USERS.cast(pa.uint8()), TAGS.cast(pa.large_list(pa.int16()))),
        (USERS.dictionary_encode(), TAGS),
        (pa.array([9, 7, None, 8])[1:], pa.array([[9], [1, 2], None, [3]], pa.large_list(pa.int64()))[1:]),
        (
            USERS,
            pa.LargeListArray.from_arrays(
                pa.array([0, 2, 2, 3], pa.int64()), pa.array([1, 2, 3]).dictionary_encode()
            ),
        ),
    ],
)
@pytest.mark.parametrize("data", [{}, {"format": "parquet", "path": "x.parquet"}])
def test_integers_where_training_read_texts_are_those_texts(
    user: pa.Array, tags: pa.Array, data: dict[str, Any]
) -> None:
    texts = (pa.array(["7", None, "8"]), pa.array(["1|2", "", "3"]))
    assert _rows(schema_of(**data), user, tags) == _rows(schema_of(**data), *texts)
    as_integers = schema_of(INTEGERS, format="parquet", path="x.parquet")
    assert _rows(as_integers, user, tags) == _rows(as_integers, USERS, TAGS)
    assert _rows(as_integers, user, tags) != _rows(schema_of(**data), *texts), "the control"


def test_kinds_of_the_columns_that_a_file_needs() -> None:
    columns: dict[str, Any] = {
        "user": "categorical",
        "age": {"kind": "dense", "source": "years"},
        "tags": {"kind": "multi_hot", "weights": "scores"},
        "both": {"kind": "cross", "columns": ["user", "old"]},
        "old": {"kind": "bucket", "source": "born", "boundaries": [1]},
        "clicked": "label",
    }
    job = job_of_tree({"data": {"format": "parquet", "path": "x.parquet", "columns": columns}})
    assert input_schema(job, {}).kinds_in_file == {
        "user": "categorical",
        "years": "dense",
        "tags": "multi_hot",
        "born": "bucket",
        "scores": "weights of tags",
    }


def test_integers_beyond_int64_are_unsigned_ones() -> None:
    assert value_array([1, 2**63]).equals(pa.array([1, 2**63], pa.uint64()))
    assert value_array([[2**64 - 1], None, []]).to_pylist() == [[2**64 - 1], None, []]
    assert value_array([-1, 5]).type == pa.int64()
    for beyond in ([2**64], [-1, 2**63], [[2**70]]):
        with pytest.raises(ValueError, match="integers that do not fit into 64 bits"):
            value_array(beyond)


@pytest.mark.parametrize(
    ("user", "tags", "column"), [(["7"], [[1]], "user"), ([7], [["1"]], "tags"), ([7], ["1|2"], "tags")]
)
def test_texts_where_training_read_integers_are_refused(
    user: list[object], tags: list[object], column: str
) -> None:
    schema = schema_of(INTEGERS, format="parquet", path="x.parquet")
    with pytest.raises(DataError, match=rf"here: column '{column}' has texts, but the model was trained on"):
        _rows(schema, pa.array(user), pa.array(tags))
    assert _rows(schema, pa.array([7]), pa.array([[1]])), "the control"
    # Of a column without a value in training nothing is known.
    assert _rows(schema_of({}, format="parquet", path="x.parquet"), pa.array(user), pa.array(tags))


@pytest.mark.parametrize(
    ("header", "keep", "said"),
    [
        ("user,tags", [], "has no column 'price'; there are user, tags"),
        ("user,tags,prize", [], "has no column 'price'; did you mean 'prize'?"),
        ("user,tags,price,price", [], "has column 'price' 2 times"),
        ("user,tags,price", ["note"], "has no column 'note'"),
    ],
)
def test_a_column_that_is_not_there(tmp_path: Path, header: str, keep: list[str], said: str) -> None:
    file = tmp_path / "x.csv"
    file.write_text(f"{header}\n{','.join('1' * (header.count(',') + 1))}\n")
    with pytest.raises(DataError) as caught:
        read(file, schema_of(), *keep)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_several_labels(tmp_path: Path) -> None:
    """Each row has those that are known; the columns of all of them may be absent."""
    more = {"bought": {"kind": "label", "source": "price", "threshold": 5}, "liked": "label"}
    columns = {**COLUMNS, **more}
    file = tmp_path / "x.csv"
    file.write_text("user,tags,price,clicked,liked\nu1,x,7,1,0\nu2,x,3,maybe,1\nu3,x\nu4,y,9,0,\n")
    (rows,) = read(file, schema_of(model="mmoe", columns=columns))
    nan = np.nan
    expected = [[1, nan, nan, 0], [1, 0, nan, 1], [0, 1, nan, nan]]
    np.testing.assert_array_equal(rows.labels, np.array(expected, np.float32))
    assert rows.scored.tolist() == [0, 1, 3]
    file.write_text("user,tags,price,liked\nu1,x,7,1\n")
    (rows,) = read(file, schema_of(model="mmoe", columns=columns))
    np.testing.assert_array_equal(rows.labels[:, 0], np.array([nan, 1, 1], np.float32))
    schema = schema_of(model="mmoe", columns={**COLUMNS, "liked": "label"}, header=False)
    for text, known in (("1,u1,x,3,1,1,0\n", True), ("1,u1,x,3,1\n", False)):
        file.write_text(text)
        (rows,) = read(file, schema)
        assert rows.scored.tolist() == [0]
        assert np.isfinite(rows.labels).all() == known
    file.write_text("1,u1,x,3,1,1\n")
    assert "6 columns, not 7" in read(file, schema)[0].why[0], "one of two labels is not enough"


@pytest.mark.parametrize("setting", [{"decimal": ","}, {"missing": ["a", "7"]}, {"strip": True}])
@pytest.mark.parametrize("form", ["criteo_tsv", "parquet"])
def test_rows_of_criteo_mean_what_they_mean_in_training(
    form: str, setting: dict[str, object], tmp_path: Path
) -> None:
    """Training on them has no use for these settings."""
    data = {"format": form, "path": str(tmp_path / "x"), "dense_features": 2, "categorical_features": 2}
    job = job_of_tree({"data": data | setting, "model": {"table_rows": 1000}})
    ids = [["a", " b ", "7", "a"], ["c", "b", " 7", ""]]
    if form == "parquet":
        columns: dict[str, list[Any]] = {"label": [0, 1, 1, 0], "I1": [1, 2, 3, 4], "I2": [7, 7, None, 7]}
        pq.write_table(pa.table(columns | {"C1": ids[0], "C2": ids[1]}), tmp_path / "x")
    else:
        numbers = ["0\t1.5\t7", "1\t2\t7", "1\t3\t", "0\t4.25\t7"]
        lines = ["\t".join(fields) + "\n" for fields in zip(numbers, *ids, strict=True)]
        (tmp_path / "x").write_text("".join(lines))
    spans = plan_spans([str(tmp_path / "x")], form, 1 << 20)
    source, bad_rows = JobInput(job), BadRows(0)
    (batch,) = source.batches(spans[0], epoch=0, seed=0, batch=9, shuffle_window=0, bad_rows=bad_rows)
    (rows,) = read_input(spans[0], input_schema(job, {}))
    assert rows.scored.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(rows.examples.rows, batch.rows)
    np.testing.assert_array_equal(rows.examples.dense, batch.dense)
    np.testing.assert_array_equal(rows.labels[0], batch.labels)


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_hard_negatives_are_read_of_files_to_train_on_alone(tmp_path: Path, file_format: str) -> None:
    texts = {"user": ["a", "b"], "item": ["x", "y"], "passed": ["y|z", ""]}
    paths = {}
    for name in ("whole", "bare"):
        table = pa.table(texts if name == "whole" else {key: texts[key] for key in ("item", "user")})
        paths[name] = str(tmp_path / f"{name}.{file_format}")
        if file_format == "csv":
            pa.csv.write_csv(table, paths[name], pa.csv.WriteOptions(quoting_style="none"))
        else:
            pq.write_table(table, paths[name])
    passed = {"kind": "multi_hot", "table": "item", "pooling": "none"}
    model = {"name": "two_tower", "query": ["user"], "item": ["item"], "negatives": "passed"}
    data = {"format": file_format, "path": paths["whole"], "validation_path": paths["bare"]}
    columns = {"user": "categorical", "item": "categorical", "passed": passed}
    job = job_of_tree({"data": data | {"columns": columns}, "model": model})
    source, counts = JobInput(job), {}
    for name, patterns in (("whole", job.data.path), ("bare", job.data.validation_path)):
        (span,) = source.plan(patterns)
        (chunk,) = source.chunks(span, BadRows(0))
        counts[name] = chunk.examples.bags.lengths.tolist()
    assert counts == {"whole": [[2, 0]], "bare": [[0, 0]]}
    with pytest.raises(DataError, match="no column 'passed'"):
        source.plan_raw([paths["bare"]])
    schema = input_schema(job, {})
    assert schema.kinds_in_file == {"user": "categorical", "item": "categorical"}
    for name in paths:
        (rows,) = read(Path(paths[name]), schema)
        assert rows.examples.bags.lengths.tolist() == [[0, 0]]
        assert rows.scored.tolist() == [0, 1]
