"""Statistics of a job's training rows: the content of statistics.json."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from ..types import FrozenModel

HEADS: Final = (1, 10, 100, 1000)
"""Numbers of most frequent values whose share is stated."""
FRACTIONS: Final = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
"""Quantiles that are stated."""


class LabelRates(FrozenModel):
    """The rates of one of several labels by a column, see `ColumnStatistics`."""

    label_rate_missing: float | None
    label_rate_present: float | None


class LabelTotals(FrozenModel):
    """The training rows with one of several labels, see `Statistics`."""

    positives: int
    label_rate: float | None


class _WithLabels(FrozenModel):
    """Base of models with `labels`, which JSON has for several labels only."""

    @model_serializer(mode="wrap")
    def _without_none(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        return {name: value for name, value in fields.items() if name != "labels" or value}


class ColumnStatistics(_WithLabels):
    """The statistics that every column has.

    Attributes:
        missing: share of the rows without a value, or with an empty bag.
        label_rate_missing, label_rate_present: share of label 1 among these rows, and among the others; None
            if there are no such rows. Of several labels they are those of the first.
        labels: of a job with several labels, the rates of each by its name.
    """

    name: str
    missing: float
    label_rate_missing: float | None
    label_rate_present: float | None
    labels: dict[str, LabelRates] = Field(default_factory=dict)


class NumberStatistics(ColumnStatistics):
    """A dense column in the units of the source, without missing values.

    The keys of `quantiles` are percents, such as "50%".
    """

    mean: float | None
    least: float | None
    largest: float | None
    quantiles: dict[str, float]


class IdStatistics(ColumnStatistics):
    """A column with a table, without missing values.

    Attributes:
        kind: "categorical" or "multi_hot".
        values: number of values, with repetitions.
        distinct: number of distinct values.
        distinct_exact: whether all values were counted; otherwise `distinct` is estimated from a sample of
            the hashes, and `head` from one of the values.
        head: share of the n most frequent values in `values`, for each n of HEADS.
        table_rows: rows of the column's table.
        expected_shared: expected share of the distinct values that share a row of the table with another
            value of the column, if the hash spreads them evenly.
        mean_length, longest: number of ids in a bag; 1 for a categorical column.
    """

    kind: str
    values: int
    distinct: int
    distinct_exact: bool
    head: dict[str, float]
    table_rows: int
    expected_shared: float
    mean_length: float
    longest: int


class Statistics(_WithLabels):
    """The statistics of the training rows.

    Attributes:
        labels: of a job with several labels, the rows of each by its name; `positives` and `label_rate` are
            those of the first.
        counted_values: up to this number all values of a column are counted, not sampled.
        quantile_error: largest relative error of a quantile.
        distinct_error: relative standard error of an estimated number of distinct values.
    """

    rows: int
    positives: int
    label_rate: float | None
    labels: dict[str, LabelTotals] = Field(default_factory=dict)
    weight_mean: float | None
    time_first: float | None
    time_last: float | None
    numbers: tuple[NumberStatistics, ...]
    ids: tuple[IdStatistics, ...]
    counted_values: int
    quantile_error: float
    distinct_error: float


def shared_rows(distinct: int, table_rows: int) -> float:
    """Return the expected fraction of `distinct` values that share their row.

    Each value has one of `table_rows` rows, at random.
    """
    return float(1.0 - (1.0 - 1.0 / table_rows) ** (distinct - 1)) if distinct > 1 else 0.0
