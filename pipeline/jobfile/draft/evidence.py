"""What single columns of a sample tell about its label."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from ...types import Float64Array, IndexArray
from .entry import DraftColumn
from .missing import numbers_of

_MOST_ROWS: Final = 100_000
_LEAST_ROWS: Final = 500
_PRIOR: Final = 1.0
_RANGES: Final = 32
_FINE_RANGES: Final = 128
_CHANCE: Final = 1e-9
_DECIDES: Final = 0.1
_TELLS: Final = 0.3
_MOST_VALUES: Final = 50
_FAR: Final = 5.0


@dataclass(frozen=True)
class Labels:
    """The labels of a sample's rows.

    `values` are float64 [n]: 0.0, 1.0, or NaN where there is none.
    """

    values: Float64Array

    @classmethod
    def of(cls, column: DraftColumn, values: pl.Series) -> Labels:
        """Return the labels by the rule that the draft has for them."""
        rule = tomllib.loads(f"rule = {column.setting}")["rule"]
        rule = rule if isinstance(rule, dict) else {}
        numbers = numbers_of(values)
        if "positive" in rule:
            numeric = numbers is not None and not any(isinstance(value, str) for value in rule["positive"])
            seen = numbers if numeric and numbers is not None else values.cast(pl.String)
            label = seen.is_in(rule["positive"]).cast(pl.Float64)
        elif numbers is None:
            label = pl.Series(np.full(len(values), np.nan))
        else:
            label = (numbers >= rule["threshold"]).cast(pl.Float64) if "threshold" in rule else numbers
        return cls(label.cast(pl.Float64).fill_null(np.nan).to_numpy())

    def tells(self, values: pl.Series) -> str:
        """Say how a column alone tells the label.

        Returns "decides" if almost nothing is left to predict, "one" if one of two values is always the same
        label, "tells" if little is left, else "".
        """
        codes, y = self._of(values, _by_value_or_place(values))
        if not len(y) or not 0 < y.mean() < 1:
            return ""
        left = _left(codes, y)
        if left <= _DECIDES:
            return "decides"
        if int(codes.max()) + 1 == 2 and _one_is_sure(codes, y):
            return "one"
        return "tells" if left <= _TELLS else ""

    def are_ids(self, numbers: pl.Series) -> bool:
        """Return whether the label differs between neighbouring numbers, as it does between ids.

        A mean for each number then predicts held-out rows better than one for each of some ranges does.
        """
        codes, y = self._of(numbers, numbers.rank("dense"))
        ranges, _ = self._of(numbers, _ranges(numbers, _RANGES))
        if not len(y) or not 0 < y.mean() < 1 or len(y) < 4 * int(codes.max() + 1):
            return False
        gain = _losses(ranges, y) - _losses(codes, y)
        return bool(gain.mean() > _FAR * gain.std() / np.sqrt(len(gain)))

    def _of(self, values: pl.Series, codes: pl.Series) -> tuple[IndexArray, Float64Array]:
        """Return codes from 0 on and labels of the rows with both.

        There are none of too few rows.
        """
        have = ~np.isnan(self.values) & values.is_not_null().to_numpy()
        groups = codes.fill_null(0).to_numpy()[have][:_MOST_ROWS].astype(np.int64)
        if len(groups) < _LEAST_ROWS:
            return np.zeros(0, np.int64), np.zeros(0)
        _, dense = np.unique(groups, return_inverse=True)
        return dense, self.values[have][:_MOST_ROWS]


def _by_value_or_place(values: pl.Series) -> pl.Series:
    """Return a code for each value; numbers of many values are put into ranges."""
    numbers = numbers_of(values)
    if numbers is not None and numbers.n_unique() > _MOST_VALUES:
        return _ranges(numbers, _FINE_RANGES)
    plain = values.dtype == pl.String or values.dtype == pl.Binary
    return (values if plain else values.cast(pl.String, strict=False)).rank("dense")


def _ranges(numbers: pl.Series, count: int) -> pl.Series:
    """Return the range of each number; up to `count` have equally many rows."""
    known = numbers.drop_nulls().to_numpy()
    edges = np.unique(np.quantile(known, np.linspace(0, 1, count + 1)[1:-1]))
    return pl.Series(np.searchsorted(edges, numbers.fill_null(0).to_numpy(), side="right"))


def _losses(codes: IndexArray, y: Float64Array) -> Float64Array:
    """Return the log loss of each row.

    It is predicted by the mean label of its code in the other half of the rows.
    """
    half = np.random.default_rng(0).random(len(y)) < 0.5
    loss = np.empty(len(y))
    count = int(codes.max()) + 1
    for part in (half, ~half):
        rows, base = ~part, float(y[~part].mean())
        times = np.bincount(codes[rows], minlength=count)
        ones = np.bincount(codes[rows], y[rows], minlength=count)
        p = np.clip((ones + _PRIOR * base) / (times + _PRIOR), 1e-6, 1 - 1e-6)[codes[part]]
        loss[part] = -np.where(y[part] == 1, np.log(p), np.log1p(-p))
    return loss


def _left(codes: IndexArray, y: Float64Array) -> float:
    """Return what is left to predict: the loss over the mean label's entropy."""
    mean = float(y.mean())
    return float(_losses(codes, y).mean() / -(mean * np.log(mean) + (1 - mean) * np.log1p(-mean)))


def _one_is_sure(codes: IndexArray, y: Float64Array) -> bool:
    """Return whether one of two values always has one label, not by chance."""
    mean = float(y.mean())
    for code in (0, 1):
        labels_of_code = y[codes == code]
        for label, share in ((1.0, mean), (0.0, 1 - mean)):
            if (labels_of_code == label).all() and share ** len(labels_of_code) < _CHANCE:
                return True
    return False
