"""Buckets of numbers: which row a number has, quantiles of the training part, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.pipeline.input.plan import plan_input
from shadowsync.pipeline.jobfile.boundaries import quantile_boundaries
from shadowsync.pipeline.jobfile.load import job_of_tree, validate_saved_job
from shadowsync.pipeline.prepare.preparation import prepare_folder
from shadowsync.pipeline.saved_model.input_rows import input_schema, rows_of_columns
from shadowsync.pipeline.saved_model.table import Table
from shadowsync.tests.support.data.prepared import batches_of, on_folder, same_batches
from shadowsync.tests.support.data.schemas import read_all

AGES = ["17.9", "18", "24", "25", "", "-3", "1e9", "35"]
EXPECTED = [0, 1, 1, 2, 4, 0, 3, 3]
BUCKET = {"kind": "bucket", "boundaries": [18, 25, 35]}


def _tree(path: Path, column: dict[str, Any], **data: Any) -> dict[str, Any]:
    columns = {"y": "label", "age": column}
    return {"data": {"format": "csv", "path": str(path), "columns": columns} | data}


def _write(path: Path, ages: list[Any], header: str = "y,age\n") -> Path:
    path.write_text(header + "".join(f"{at % 2},{age}\n" for at, age in enumerate(ages)))
    return path


def test_rows_of_given_boundaries(tmp_path: Path) -> None:
    job = job_of_tree(_tree(_write(tmp_path / "log.csv", AGES), BUCKET))
    assert job.column_rows == (5,)
    assert read_all(job).rows.tolist() == [EXPECTED]
    table = pa.table({"y": [0] * 8, "age": [float(age) if age else None for age in AGES]})
    pq.write_table(table, tmp_path / "log.parquet")
    other = job_of_tree(_tree(tmp_path / "log.parquet", BUCKET, format="parquet"))
    assert read_all(other).rows.tolist() == [EXPECTED]
    raw = rows_of_columns({"age": table["age"].chunk(0)}, input_schema(job, {}), [], "a dict", np.arange(8))
    assert raw.examples.rows.tolist() == [EXPECTED]


def test_a_number_and_a_bucket_of_one_column(tmp_path: Path) -> None:
    tree = _tree(_write(tmp_path / "log.csv", AGES), BUCKET)
    tree["data"]["columns"] |= {
        "years": {"kind": "dense", "source": "age"},
        "id": {**BUCKET, "source": "age"},
    }
    job = job_of_tree(tree)
    assert read_all(job).rows.tolist() == [EXPECTED, EXPECTED]
    assert job.data.dense_width == 1


def test_what_is_no_number_is_a_bad_row(tmp_path: Path) -> None:
    bad = BadRows(1)
    job = job_of_tree(_tree(_write(tmp_path / "log.csv", [*AGES, "old"]), BUCKET))
    assert len(read_all(job, bad)) == 8
    assert [row.why for row in bad.first] == ["age 'old' is not numeric"]


def _quantiles(path: Path, count: int = 4, **data: Any) -> Job:
    return job_of_tree(_tree(path, {"kind": "bucket", "quantiles": count}, **data))


def test_quantiles_cut_the_rows_evenly_and_stay_with_the_job(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ages = [f"{age:.1f}" if age > -1.5 else "" for age in rng.normal(size=4000)]
    job = _quantiles(_write(tmp_path / "log.csv", ages))
    column = job.data.columns["age"]
    assert column.quantiles == 4
    # They are numbers of the file, and not float32's nearest ones.
    assert all(str(cut) in ages for cut in column.boundaries)
    counts = np.bincount(read_all(job).rows[0], minlength=5)
    assert counts[:4] == pytest.approx(sum(counts[:4]) / 4, rel=0.15)
    assert counts[4] == ages.count("") > 100
    saved = validate_saved_job(job.model_dump(mode="json"), where="a run")
    (tmp_path / "log.csv").write_text("y,age\n1,5\n")
    assert saved == job
    assert _quantiles_refused(tmp_path / "log.csv").startswith("column age has one value only")


@pytest.mark.parametrize("name", ["mmoe", "din"])
def test_quantiles_beside_several_labels_or_a_sequence(tmp_path: Path, name: str) -> None:
    rows = "".join(f"{at % 2},{at % 3 // 2},{at},a|b\n" for at in range(100))
    (tmp_path / "log.csv").write_text("y,z,age,seen\n" + rows)
    columns: dict[str, Any] = {"y": "label", "age": {"kind": "bucket", "quantiles": 4}}
    columns |= {"z": "label"} if name == "mmoe" else {"seen": {"kind": "multi_hot", "pooling": "none"}}
    model: dict[str, Any] = {"name": name}
    if name == "din":
        columns["item"] = {"kind": "categorical", "source": "age"}
        model["attention"] = {"seen": "item"}
    data = {"format": "csv", "path": str(tmp_path / "log.csv"), "columns": columns}
    assert job_of_tree({"data": data, "model": model}).data.columns["age"].boundaries == [25, 50, 75]
    if name == "mmoe":
        # What is wrong with the rest is told by name.
        with pytest.raises(JobFileError, match=r"model\.name: 'dlrm' has one logit"):
            job_of_tree({"data": data})


def _quantiles_refused(path: Path, **data: Any) -> str:
    with pytest.raises(DataError) as caught:
        _quantiles(path, **data)
    return str(caught.value).removeprefix(f"{path}: ")


def test_only_the_training_part_counts(tmp_path: Path) -> None:
    """Of rows in the order of time whose last half is far away."""
    path = tmp_path / "log.csv"
    lines = [f"{at % 2},{at if at < 500 else 1e6},{at}\n" for at in range(1000)]
    path.write_text("y,age,at\n" + "".join(lines))
    tree = _tree(path, {"kind": "bucket", "quantiles": 5}, order="time", split={"by": "time", "test": 0.5})
    tree["data"]["columns"]["at"] = "timestamp"
    assert job_of_tree(tree).data.columns["age"].boundaries == [100.0, 200.0, 300.0, 400.0]
    # The control: of all rows half are 1e6.
    del tree["data"]["split"]
    assert max(job_of_tree(tree).data.columns["age"].boundaries) == 1e6


def test_a_drawn_part_counts_as_training_draws_it(tmp_path: Path) -> None:
    path = _write(tmp_path / "log.csv", ["x", *range(9)] * 10)
    job = _quantiles(path, split={"by": "fraction", "test": 0.5}, max_bad_fraction=1.0)
    rows = np.concatenate([batch.rows[0] for batch in batches_of(job, plan_input(job).train)])
    assert np.bincount(rows, minlength=5)[:4].min() > 0.15 * len(rows)


@pytest.mark.parametrize("header", ["", "y,age\n"])
def test_quantiles_without_a_header_and_with_repeated_values(tmp_path: Path, header: str) -> None:
    path = _write(tmp_path / "log.csv", [0] * 90 + [1] * 5 + [2] * 5, header)
    job = _quantiles(path, 10, header=bool(header))
    # Ten buckets of equal size cannot be made of three values, and 0 is not a missing value.
    assert job.data.columns["age"].boundaries == [1.0]
    assert job.column_rows == (3,)


def test_boundaries_of_values() -> None:
    values = np.arange(100, dtype=np.float32)
    assert quantile_boundaries(values, 4) == [25.0, 50.0, 75.0]
    assert quantile_boundaries(values[:0], 4) == quantile_boundaries(values[:1], 4) == []
    assert quantile_boundaries(np.array([0.1, 0.2], np.float32), 2) == [0.2]


def test_columns_that_cannot_be_cut(tmp_path: Path) -> None:
    path = _write(tmp_path / "log.csv", [""] * 9)
    assert _quantiles_refused(path).startswith("column age has no value in the sample of the training part")
    assert "matches no file" in _quantiles_refused(tmp_path / "none.csv")


@pytest.mark.parametrize("column", [BUCKET, {"kind": "bucket", "quantiles": 4}])
def test_prepared_the_same(tmp_path: Path, column: dict[str, Any]) -> None:
    tree = _tree(_write(tmp_path / "log.csv", [*AGES, *range(100)]), column)
    tree["data"]["columns"]["id"] = {"kind": "categorical", "source": "age"}
    made = prepare_folder(job_of_tree(tree), tmp_path / "out")
    batches = list(batches_of(job_of_tree(tree)))
    (tmp_path / "log.csv").unlink()
    # The folder has the boundaries, wherever its source is now.
    assert same_batches(batches, list(batches_of(on_folder(tree, tmp_path / "out"))))
    age = next(column for column in made.manifest.columns if column.name == "age")
    assert (age.kind, age.hash_column, age.table_rows) == ("categorical", None, 5)
    assert age.transform.endswith(" are at most x; 4 where missing")


def test_rows_of_a_table_by_number() -> None:
    table = Table("age", np.zeros((5, 2), np.float32), "", integers_as_text=True, boundaries=[18, 25, 35])
    assert [table.hash(float(age) if age else None) for age in AGES] == EXPECTED
    with pytest.raises(TypeError, match="table age: '18' is not a number; give a number or None"):
        table.hash("18")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('kind = "bucket"', "age: no boundaries given; give boundaries, as in [18, 25, 35]"),
        ('kind = "bucket", boundaries = [2, 2]', "age.boundaries: 2 after 2; give rising numbers"),
        ('kind = "bucket", quantiles = 1', "age.quantiles: 1 given; input should be greater"),
        ('kind = "bucket", boundaries = [nan]', "age.boundaries.0: nan given; input should"),
        ('kind = "dense", quantiles = 3', 'age.quantiles: given; it is for kind "bucket", this is "dense"'),
    ],
)
def test_refused_columns(refusal: Callable[..., str], entry: str, said: str) -> None:
    text = f'[data]\nformat = "csv"\npath = "x.csv"\n[data.columns]\ny = "label"\nage = {{ {entry} }}\n'
    assert refusal(text).startswith(f"data.columns.{said}")
