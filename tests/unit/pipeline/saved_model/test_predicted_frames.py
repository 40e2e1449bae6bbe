"""Rows in memory, as pandas, polars and pyarrow hold them: each the same rows to a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from shadowsync.pipeline.data.batch import Batch
from shadowsync.pipeline.data.formats.parquet import IdClass
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.saved_model.prediction import predict_columns
from shadowsync.pipeline.types import Float32Array, IndexArray

COLUMNS = {"user": "categorical", "tags": {"kind": "multi_hot"}, "price": "dense", "clicked": "label"}
ROWS: dict[str, list[Any]] = {
    "user": ["a", "b", "c"], "tags": [["x"], ["x", "y"], []], "price": [1.0, 2.0, 3.0],
}  # fmt: skip


class SumModel:
    """Scores a row by its dense features and the numbers of its tables' rows."""

    def __init__(self) -> None:
        tree = {"format": "parquet", "path": "x", "columns": COLUMNS}
        self.job = job_of_tree({"data": tree, "model": {"name": "dlrm", "table_rows": 100_000}})
        self.id_classes: Mapping[str, IdClass] = {"user": "text", "tags": "text"}
        self.folder = Path("x")

    def ids_without_row(self, batch: Batch) -> dict[str, tuple[int, int]]:  # noqa: ARG002
        """None: it has no tables."""
        return {}

    def logits(self, batch: Batch, owner: IndexArray | None = None) -> Float32Array:  # noqa: ARG002
        """The sums."""
        ends = np.cumsum(batch.bag_lengths[0])
        bags = [
            batch.bag_rows[end - n : end].sum() for end, n in zip(ends, batch.bag_lengths[0], strict=True)
        ]
        sums: Float32Array = (batch.dense.sum(axis=1) + (batch.rows.sum(axis=0) + bags) / 1e5).astype(
            np.float32
        )
        return sums


def pandas() -> Any:
    """The package, which shadowsync does not need itself."""
    return pytest.importorskip("pandas")


def polars_with(**kinds: Any) -> Callable[[], Any]:
    return lambda: pl.DataFrame(ROWS).with_columns(*(pl.col(name).cast(kind) for name, kind in kinds.items()))


def pandas_with(**columns: Any) -> Callable[[], Any]:
    return lambda: pandas().DataFrame(ROWS | columns)


def arrow_with(**columns: Any) -> Callable[[], Any]:
    return lambda: pa.table(ROWS | columns)


def twice() -> Any:
    """A frame of pandas whose unused columns have one name, and hold anything."""
    return pandas().concat(
        [pandas().DataFrame(ROWS), pandas().DataFrame([[1, "x"], ["y", 2], [3, 4]], columns=["u", "u"])],
        axis=1,
    )


X = pa.array(["x", "x", "y"])
FRAMES: dict[str, Callable[[], Any]] = {
    "rows": lambda: [dict(zip(ROWS, row, strict=True)) for row in zip(*ROWS.values(), strict=True)],
    "polars": lambda: pl.DataFrame(ROWS),
    "categorical": polars_with(user=pl.Categorical, tags=pl.List(pl.Categorical)),
    "enum": polars_with(user=pl.Enum(["a", "b", "c"]), tags=pl.List(pl.Enum(["x", "y"]))),
    "decimal": polars_with(price=pl.Decimal(10, 2)),
    "chunks": lambda: pl.concat([pl.DataFrame(ROWS)[:1], pl.DataFrame(ROWS)[1:]], rechunk=False),
    "pandas": lambda: pandas().DataFrame(ROWS),
    "an index": lambda: pandas().DataFrame(ROWS, index=[7, 3, 3]),
    "ids in the index": lambda: pandas().DataFrame(ROWS).set_index("user"),
    "category": lambda: pandas().DataFrame(ROWS).astype({"user": "category"}),
    "decimals": pandas_with(price=[Decimal(1), Decimal("2.00"), Decimal(3)]),
    "integers or none": lambda: pandas().DataFrame(
        ROWS | {"price": pandas().array([1, 2, 3], dtype="Int64")}
    ),
    "tuples": pandas_with(tags=[("x",), ("x", "y"), ()]),
    "unused twice": twice,
    "dictionary": arrow_with(
        user=pa.array(ROWS["user"]).dictionary_encode(),
        tags=pa.ListArray.from_arrays([0, 1, 3, 3], X.dictionary_encode()),
    ),
    "views": arrow_with(user=pa.array(ROWS["user"], pa.string_view())),
    "large lists": arrow_with(tags=pa.array(ROWS["tags"], pa.large_list(pa.large_string()))),
}


@pytest.mark.parametrize("frame", FRAMES)
def test_each_has_the_same_scores(frame: str) -> None:
    model = SumModel()
    wanted = predict_columns(model, ROWS)
    assert len(np.unique(wanted)) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(predict_columns(model, FRAMES[frame]()), wanted)


@pytest.mark.parametrize(
    "nothing",
    [
        pandas_with(user=[np.nan] * 3),
        pandas_with(user=[None] * 3),
        lambda: pl.DataFrame(ROWS | {"user": [None] * 3}),
        arrow_with(user=pa.nulls(3, pa.float32())),
    ],
    ids=["NaN", "None", "polars", "float32"],
)
def test_a_column_of_ids_without_any_value_has_missing_ids(nothing: Callable[[], Any]) -> None:
    model = SumModel()
    wanted = predict_columns(model, pa.table(ROWS | {"user": pa.nulls(3, pa.string())}))
    np.testing.assert_array_equal(predict_columns(model, nothing()), wanted)


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (pandas_with(user=[1.0, 2.0, np.nan]), "column user has type double"),
        (
            lambda: pandas().concat(
                [pandas().DataFrame(ROWS), pandas().DataFrame({"price": [1, 2, 3]})], axis=1
            ),
            "Duplicate column",
        ),
        (
            lambda: pandas().DataFrame(ROWS).drop(columns="price"),
            r"has no column 'price'; there are user, tags",
        ),
        (pandas_with(user=["a", None, 3]), "do not form a table"),
        (arrow_with(tags=pa.array([[["x"]], [["y"]], []])), "column tags has type list<item: list"),
        (arrow_with(user=pa.array([{"k": 1}] * 3)), "column user has type struct"),
    ],
    ids=["floats", "twice", "missing", "mixed", "nested", "struct"],
)
def test_what_is_no_such_column_is_refused_by_name(frame: Callable[[], Any], why: str) -> None:
    with pytest.raises(DataError, match=why):
        predict_columns(SumModel(), frame())
