"""Counting of a job's training rows with polars, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..config.columns import ColumnSection
from ..config.job import Job
from ..data.hashing import column_number, hash_bytes, hashes_of_rows
from ..text.format import percent
from ..types import Float32Array, Mask
from .source import TappedRows
from .statistics import (
    FRACTIONS,
    HEADS,
    IdStatistics,
    LabelRates,
    LabelTotals,
    NumberStatistics,
    Statistics,
    shared_rows,
)
from .value_counts import Arrays, DistinctCounter, ValueCounts

QUANTILE_DIGITS: Final = 3
QUANTILE_ERROR: Final = 0.005
"""Relative: numbers are counted rounded to QUANTILE_DIGITS digits, so whole ones below 1,000 are exact."""
# So many distinct values are counted exactly over all columns, and in one column at most MOST_COUNTED.
ALL_COUNTED: Final = 1 << 21
MOST_COUNTED: Final = 1 << 16
WAITING_VALUES: Final = 1 << 22


class StatisticsCounter:
    """Count the rows of a job; used by one thread.

    Memory: some 100 MB for any number of rows and values.

    Args:
        job: the job.
        saved: the counts that `saved` of an earlier counter returned, to continue from.
    """

    def __init__(self, job: Job, saved: Arrays | None = None) -> None:
        columns, saved = job.data.columns, saved or {}
        self._units = {name: column for name, column in columns.items() if column.kind == "dense"}
        dense = list(self._units) if columns else [f"I{at + 1}" for at in range(job.data.dense_features)]
        self._tables = job.tables
        self._bagged = [table.name for table in job.tables if table.pooling]
        self.counted = max(256, min(MOST_COUNTED, ALL_COUNTED // len(self._tables)))
        self._labels = job.data.label_names
        self._numbers = {
            name: _NumberCounter(self._labels, _without_prefix(saved, f"number {name}")) for name in dense
        }
        self._ids = {
            table.name: _IdCounter(
                self._labels,
                _missing_hash(table.name, columns.get(table.name)),
                self.counted,
                shares=table.growth is None
                and (table.name not in columns or columns[table.name].fixed_rows is None),
                bagged=bool(table.pooling),
                saved=_without_prefix(saved, f"id {table.name}"),
            )
            for table in self._tables
        }
        # Number of rows, of labels of 1, sum of weights, first and last time.
        self._totals = np.array(saved.get("totals", [0, 0, 0, np.inf, -np.inf]))
        # Number of labels of 1, of each further label.
        self._others = np.array(saved.get("others", np.zeros(len(self._labels) - 1)), np.int64)
        self._weighted = any(column.kind == "weight" for column in columns.values())
        self._waiting: list[TappedRows] = []
        self._waiting_values = 0

    def add(self, rows: TappedRows) -> None:
        """Add rows; they are counted many at once, perhaps later."""
        examples, times = rows.chunk.examples, rows.chunk.times
        self._totals[:3] += [len(rows), (examples.labels > 0).sum(), examples.weights.sum(dtype=np.float64)]
        self._others += (examples.other_labels > 0).sum(axis=1)
        self._totals[3] = times.min(initial=self._totals[3])
        self._totals[4] = times.max(initial=self._totals[4])
        self._waiting.append(rows)
        self._waiting_values += sum(map(len, rows.hashes.values())) + examples.dense.size
        if self._waiting_values >= WAITING_VALUES:
            self._count()

    def saved(self) -> dict[str, NDArray[Any]]:
        """Return all counts by name; pending rows are counted first."""
        self._count()
        arrays = {"totals": self._totals} | ({"others": self._others} if len(self._others) else {})
        for name, numbers in self._numbers.items():
            arrays |= _with_prefix(f"number {name}", numbers.saved())
        for name, ids in self._ids.items():
            arrays |= _with_prefix(f"id {name}", ids.saved())
        return arrays

    def statistics(self) -> Statistics:
        """Return the statistics of all rows so far."""
        self._count()
        rows, positives, weight, first, last = self._totals.tolist()
        timed = np.isfinite(first)
        return Statistics(
            rows=int(rows),
            positives=int(positives),
            label_rate=positives / rows if rows else None,
            labels=self._label_totals(int(rows), int(positives)),
            weight_mean=weight / rows if rows and self._weighted else None,
            time_first=first if timed else None,
            time_last=last if timed else None,
            numbers=tuple(column.statistics(name) for name, column in self._numbers.items()),
            ids=tuple(self._ids[table.name].statistics(table.name, table.rows) for table in self._tables),
            counted_values=self.counted,
            quantile_error=QUANTILE_ERROR,
            # The sample has at least half as many hashes as the limit.
            distinct_error=float((2 / self.counted) ** 0.5),
        )

    def _label_totals(self, rows: int, positives: int) -> dict[str, LabelTotals]:
        if not len(self._others):
            return {}
        counts = zip(self._labels, (positives, *self._others.tolist()), strict=True)
        return {
            name: LabelTotals(positives=count, label_rate=count / rows if rows else None)
            for name, count in counts
        }

    def _count(self) -> None:
        waiting, self._waiting, self._waiting_values = self._waiting, [], 0
        if not waiting:
            return
        examples = [rows.chunk.examples for rows in waiting]
        labels = np.concatenate([np.vstack([one.labels, *one.other_labels]) for one in examples], axis=1)
        for at, (name, column) in enumerate(self._numbers.items()):
            values = [self._as_source(name, one.dense[:, at]) for one in examples]
            column.add(values, [rows.missing[name] for rows in waiting], labels)
        lengths = {
            name: np.concatenate([one.bags.lengths[at] for one in examples])
            for at, name in enumerate(self._bagged)
        }
        for name, ids in self._ids.items():
            ids.add(np.concatenate([rows.hashes[name] for rows in waiting]), lengths.get(name), labels)

    def _as_source(self, name: str, seen: Float32Array) -> NDArray[np.float64]:
        """Turn the numbers that a model sees back into those of the source."""
        section = self._units.get(name)
        values = seen.astype(np.float64)
        if section is None or section.transform == "log":
            with np.errstate(over="ignore"):
                values = np.copysign(np.expm1(np.abs(values)), values)
        if section is not None:
            values = values * section.scale + section.shift
        limit = float(np.finfo(np.float32).max)
        found: NDArray[np.float64] = values.clip(-limit, limit)
        return found


class _ColumnCounter:
    """Count rows of a column, by label and missing value.

    `presence` is int64 [2 + 2T] for T labels: number of rows, of rows without a value; then for each label
    the number of labels of 1, and of labels of 1 without a value.
    """

    def __init__(self, labels: tuple[str, ...], saved: Arrays) -> None:
        self._labels = labels
        self.presence = np.array(saved.get("presence", np.zeros(2 + 2 * len(labels))), np.int64)

    def add_presence(self, missing: NDArray[np.bool_], labels: Float32Array) -> None:
        """Count n rows; `labels` are float32 [T, n]."""
        positive = labels > 0
        by_label = np.stack([positive.sum(axis=1), (missing & positive).sum(axis=1)], axis=1)
        self.presence += [len(missing), missing.sum(), *by_label.flat]

    def stated(self) -> dict[str, Any]:
        """Return the fields of a `ColumnStatistics`, except the name."""
        rows, missing = map(int, self.presence[:2])
        rates = [
            LabelRates(
                label_rate_missing=both / missing if missing else None,
                label_rate_present=(positives - both) / (rows - missing) if rows > missing else None,
            )
            for positives, both in self.presence[2:].reshape(-1, 2).tolist()
        ]
        return {
            "missing": missing / rows if rows else 0.0,
            **rates[0].model_dump(),
            "labels": dict(zip(self._labels, rates, strict=True)) if len(rates) > 1 else {},
        }


class _NumberCounter(_ColumnCounter):
    def __init__(self, labels: tuple[str, ...], saved: Arrays) -> None:
        super().__init__(labels, saved)
        # Sum, least and largest value.
        self._moments = np.array(saved.get("moments", [0.0, np.inf, -np.inf]))
        self._counts = ValueCounts(pl.Float64, _without_prefix(saved, "counts"))

    def add(
        self, values: Sequence[NDArray[np.float64]], missing: Sequence[Mask], labels: Float32Array
    ) -> None:
        """Add chunks of rows; `labels` are those of all chunks, float32 [T, n]."""
        self.add_presence(np.concatenate(missing), labels)
        chunks = [chunk[~mask] for chunk, mask in zip(values, missing, strict=True)]
        # Chunk by chunk, so that the rounding of the sum does not depend on how many are counted at once.
        for chunk in chunks:
            self._moments[0] += chunk.sum()
        present = np.concatenate(chunks)
        self._moments[1] = present.min(initial=self._moments[1])
        self._moments[2] = present.max(initial=self._moments[2])
        # Adding 0.0 turns -0.0 into 0.0; they would be two values.
        self._counts.add(pl.Series(present).round_sig_figs(QUANTILE_DIGITS) + 0.0)

    def saved(self) -> dict[str, NDArray[Any]]:
        arrays = {"presence": self.presence, "moments": self._moments}
        return arrays | _with_prefix("counts", self._counts.saved())

    def statistics(self, name: str) -> NumberStatistics:
        values = int(self.presence[0] - self.presence[1])
        total, least, largest = self._moments.tolist()
        return NumberStatistics(
            name=name,
            mean=total / values if values else None,
            least=least if values else None,
            largest=largest if values else None,
            quantiles=self._quantiles(values, least, largest),
            **self.stated(),
        )

    def _quantiles(self, values: int, least: float, largest: float) -> dict[str, float]:
        """Return the quantiles, by percent.

        Counted values are rounded, so they are clipped to the least and the largest.
        """
        ordered = self._counts.frame.sort("value").with_columns(pl.col("count").cum_sum())
        return {
            percent(at): float(
                ordered["value"]
                .gather(ordered["count"].search_sorted(max(1, int(np.ceil(at * values)))))
                .clip(least, largest)[0]
            )
            for at in (FRACTIONS if values else ())
        }


class _IdCounter(_ColumnCounter):
    """Count hashes of a column's values.

    `missing` is the hash of a missing value. `shares` is False if each value has a row of its own.
    """

    def __init__(
        self,
        labels: tuple[str, ...],
        missing: np.uint64,
        limit: int,
        *,
        shares: bool,
        bagged: bool,
        saved: Arrays,
    ) -> None:
        super().__init__(labels, saved)
        self._limit, self._shares, self._bagged = limit, shares, bagged
        self._missing_hash = missing
        # Number of all values, length of the longest bag.
        self._sizes = np.array(saved.get("sizes", np.zeros(2)), np.int64)
        self._counts = ValueCounts(pl.UInt64, _without_prefix(saved, "counts"))
        self._distinct = DistinctCounter(limit, _without_prefix(saved, "distinct"))

    def add(
        self, hashes: NDArray[np.uint64], lengths: NDArray[np.int32] | None, labels: Float32Array
    ) -> None:
        """Add rows: labels [T, n], and the lengths of bags, int32 [n], if any."""
        if lengths is not None:
            self.add_presence(lengths == 0, labels)
            self._sizes[1] = max(self._sizes[1], int(lengths.max(initial=0)))
        else:
            missing = hashes == self._missing_hash
            self.add_presence(missing, labels)
            hashes = hashes[~missing]
        series = pl.Series(hashes)
        self._counts.add(series)
        self._counts.keep(self._limit)
        self._distinct.add(series)
        self._sizes[0] += len(hashes)

    def saved(self) -> dict[str, NDArray[Any]]:
        arrays = {"presence": self.presence, "sizes": self._sizes}
        return (
            arrays
            | _with_prefix("counts", self._counts.saved())
            | _with_prefix("distinct", self._distinct.saved())
        )

    def statistics(self, name: str, table_rows: int) -> IdStatistics:
        values, longest = self._sizes.tolist()
        counts, rows = self._counts, int(self.presence[0])
        distinct = self._distinct.estimate() if counts.short else len(counts.frame)
        largest = counts.frame["count"].top_k(HEADS[-1]).sort(descending=True)
        return IdStatistics(
            name=name,
            kind="multi_hot" if self._bagged else "categorical",
            values=values,
            distinct=distinct,
            distinct_exact=not counts.short,
            head={str(head): int(largest.head(head).sum()) / values if values else 0.0 for head in HEADS},
            head_short=min(1.0, HEADS[-1] * counts.short / values) if values else 0.0,
            table_rows=table_rows,
            expected_shared=shared_rows(distinct, table_rows) if self._shares else 0.0,
            mean_length=(values / rows if rows else 0.0) if self._bagged else 1.0,
            longest=longest if self._bagged else 1,
            **self.stated(),
        )


def _missing_hash(name: str, section: ColumnSection | None) -> np.uint64:
    """Return the hash of a column's missing values."""
    if section is None or section.fixed_rows is None:
        return np.uint64(hash_bytes(column_number(name), b""))
    return np.uint64(hashes_of_rows(np.array([section.fixed_rows - 1]), section.fixed_rows)[0])


def _with_prefix(prefix: str, arrays: Arrays) -> dict[str, NDArray[Any]]:
    return {f"{prefix}/{name}": values for name, values in arrays.items()}


def _without_prefix(arrays: Arrays, prefix: str) -> dict[str, NDArray[Any]]:
    """Return the arrays that `_with_prefix` named with this prefix."""
    start = f"{prefix}/"
    return {name[len(start) :]: values for name, values in arrays.items() if name.startswith(start)}
