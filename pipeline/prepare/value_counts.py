"""Counts of values and of distinct values, in bounded memory, with polars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

Arrays: TypeAlias = Mapping[str, NDArray[Any]]


class ValueCounts:
    """Count how often each value occurs.

    Attributes:
        frame: the columns `value` and `count`. A count is at most `short` too small, and never too large.
        short: the largest error of a count; 0 while no value was dropped.
    """

    def __init__(self, dtype: type[pl.DataType], saved: Arrays) -> None:
        schema: dict[str, type[pl.DataType]] = {"value": dtype, "count": pl.Int64}
        self.frame = pl.DataFrame({key: saved.get(key, []) for key in schema}, schema=schema)
        self.short = int(saved["short"][0]) if saved else 0

    def add(self, values: pl.Series) -> None:
        """Count values."""
        new = values.alias("value").value_counts().cast({"count": pl.Int64})
        self.frame = pl.concat([self.frame, new]).group_by("value").agg(pl.col("count").sum())

    def keep(self, limit: int) -> None:
        """Drop rare values until at most `limit` are left.

        Source: Misra and Gries, 1982.
        """
        # polars has no sketch of frequent values. DataSketches has one, but would be one more compiled
        # dependency for these lines. Its error is a bound for the whole stream; `short` is the actual one.
        if len(self.frame) > limit:
            less = int(self.frame["count"].top_k(limit + 1).to_numpy().min())
            self.frame = self.frame.with_columns(pl.col("count") - less).filter(pl.col("count") > 0)
            self.short += less

    def saved(self) -> dict[str, NDArray[Any]]:
        """Return what the constructor continues from."""
        arrays = {name: self.frame[name].to_numpy() for name in self.frame.columns}
        return {**arrays, "short": np.array([self.short])}


class DistinctCounter:
    """Estimate the number of distinct hashes, by adaptive sampling.

    The sample has all distinct hashes below a bound, which is halved when the sample is full. Hashes are
    assumed to be spread evenly. Source: Flajolet, On adaptive sampling, Computing 43 (1990).
    """

    # `approx_n_unique` of polars returns only a number. An interrupted preparation needs a state that can be
    # saved.
    def __init__(self, limit: int, saved: Arrays) -> None:
        self._limit = limit
        self._sample = pl.Series(saved.get("sample", []), dtype=pl.UInt64)
        self._halvings = int(saved["halvings"][0]) if saved else 0

    def add(self, hashes: pl.Series) -> None:
        """Count hashes."""
        self._sample = pl.concat([self._sample, self._below(hashes)]).unique()
        while len(self._sample) > self._limit:
            self._halvings += 1
            self._sample = self._below(self._sample)

    def _below(self, hashes: pl.Series) -> pl.Series:
        return hashes.filter(hashes <= (2**64 - 1) >> self._halvings)

    def estimate(self) -> int:
        """Return the estimated number of distinct hashes."""
        return len(self._sample) << self._halvings

    def saved(self) -> dict[str, NDArray[Any]]:
        """Return what the constructor continues from."""
        return {"sample": self._sample.to_numpy(), "halvings": np.array([self._halvings])}
