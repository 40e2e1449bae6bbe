"""The data profile: what somebody wants to know of the rows before a model is trained on them."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

HEADS: Final = (1, 10, 100, 1000)
FRACTIONS: Final = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


class _Stated(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ColumnProfile(_Stated):
    """What every column has.

    Attributes:
        missing: share of the rows without a value; of a multi-hot column with an empty bag.
        label_rate_missing, label_rate_present: share of label 1 among those rows, and among the others; None
            where there are none.
    """

    name: str
    missing: float
    label_rate_missing: float | None
    label_rate_present: float | None


class NumberProfile(ColumnProfile):
    """A dense column, in the units of the source, missing values aside.

    Attributes:
        quantiles: by percent; the number is at most 1 in 128 too near to 0. Empty without a value.
    """

    mean: float | None
    least: float | None
    largest: float | None
    quantiles: dict[str, float]


class IdProfile(ColumnProfile):
    """A column with a table, missing values aside.

    Attributes:
        kind: "categorical" or "multi_hot".
        values: how many there are, with repetitions.
        distinct: how many different ones.
        distinct_exact: whether that was counted; otherwise it is HyperLogLog's, within about 2%.
        head: by number of values, the share of `values` that so many of the most frequent have.
        head_short: how much too small any of these shares may be; 0 where all values were counted.
        table_rows: of its table.
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


class DataProfile(_Stated):
    """The rows of training.

    Attributes:
        counted_values: up to so many different values a column's are counted, not estimated.
        quantile_error, distinct_error: relative errors of quantiles, and of distinct values (standard).
    """

    rows: int
    positives: int
    label_rate: float | None
    weight_mean: float | None
    time_first: float | None
    time_last: float | None
    numbers: tuple[NumberProfile, ...]
    ids: tuple[IdProfile, ...]
    counted_values: int
    quantile_error: float
    distinct_error: float


def shared_rows(distinct: int, table_rows: int) -> float:
    """The expected share of `distinct` values, each in one of `table_rows` rows, that are not alone."""
    if distinct < 2:
        return 0.0
    return float(1.0 - (1.0 - 1.0 / table_rows) ** (distinct - 1))
