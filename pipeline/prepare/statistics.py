"""Statistics of a job's training rows: the content of statistics.json."""

from __future__ import annotations

from typing import Final

from ..types import FrozenModel

HEADS: Final = (1, 10, 100, 1000)
"""Numbers of most frequent values whose share is stated."""
FRACTIONS: Final = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
"""Quantiles that are stated."""


class ColumnStatistics(FrozenModel):
    """The statistics that every column has.

    Attributes:
        missing: share of the rows without a value; of a multi-hot column with an empty bag.
        label_rate_missing, label_rate_present: share of label 1 among those rows, and among the others; None
            where there are none.
    """

    name: str
    missing: float
    label_rate_missing: float | None
    label_rate_present: float | None


class NumberStatistics(ColumnStatistics):
    """A dense column in the units of the source, without missing values.

    `quantiles` are by percent.
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
        distinct_exact: whether that was counted; otherwise it is estimated from a sample of the hashes.
        head: share of the n most frequent values in `values`, for each n of HEADS.
        head_short: the most by which any of these shares may be too small; 0 where all values were counted.
        table_rows: rows of its table.
        expected_shared: the share of the different values that share a row of the table with another, as a
            hash that spreads them evenly makes it.
        mean_length, longest: ids in a bag; 1 of a categorical column.
    """

    kind: str
    values: int
    distinct: int
    distinct_exact: bool
    head: dict[str, float]
    head_short: float
    table_rows: int
    expected_shared: float
    mean_length: float
    longest: int


class Statistics(FrozenModel):
    """The rows of training.

    Attributes:
        counted_values: up to this number, the different values of a column are counted, not estimated.
        quantile_error, distinct_error: relative errors of quantiles, and of distinct values (standard).
    """

    rows: int
    positives: int
    label_rate: float | None
    weight_mean: float | None
    time_first: float | None
    time_last: float | None
    numbers: tuple[NumberStatistics, ...]
    ids: tuple[IdStatistics, ...]
    counted_values: int
    quantile_error: float
    distinct_error: float


def shared_rows(distinct: int, table_rows: int) -> float:
    """Return the expected fraction of values that share their row.

    There are `distinct` values, each in one of `table_rows` rows.
    """
    return float(1.0 - (1.0 - 1.0 / table_rows) ** (distinct - 1)) if distinct > 1 else 0.0
