"""Values of the training rows, and the statistics that polars makes of them.

They are in a file beside each part until the folder is complete.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..config.columns import ColumnSection
from ..config.job import Job
from ..config.tables import EmbeddedColumn
from ..data.hashing import column_number, hash_bytes, hashes_of_rows
from ..text.format import percent
from ..types import Float32Array
from .source import ObservedRows
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

QUANTILE_DIGITS: Final = 3
QUANTILE_ERROR: Final = 0.005
"""Relative: numbers are counted rounded to QUANTILE_DIGITS digits, so whole ones below 1,000 are exact."""
EXACT_VALUES: Final = 1 << 22
"""The different values of a column with at most so many values are counted; else perhaps a sample of them."""
EXACT_DISTINCT: Final = 1 << 14
"""Of a sample with at most so many different values all values are counted."""


class ValuesWriter:
    """Write labels, numbers in the source's units and hashes of ids.

    Used by one thread. Missing values are null. Without rows the file is empty. Methods raise OSError.
    """

    def __init__(self, job: Job, path: Path) -> None:
        self._job, self._file = job, path.open("wb")
        self._writer: Any = None

    def write(self, rows: ObservedRows) -> None:
        """Append rows."""
        table = pa.table(self._columns(rows))
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, table.schema, compression="zstd")
        self._writer.write_table(table)

    def close(self) -> None:
        """Complete the file and write it to the disk.

        After an error of this method call `discard`.
        """
        if self._writer is not None:
            self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def discard(self) -> None:
        """Close the file as it is, without its end."""
        if self._writer is not None:
            self._writer.is_open = False
        self._file.close()

    def _columns(self, rows: ObservedRows) -> dict[str, Any]:
        examples, sections = rows.chunk.examples, self._job.data.columns
        arrays: dict[str, Any] = {
            f"label {number}": labels > 0
            for number, labels in enumerate((examples.labels, *examples.other_labels))
        }
        for number, name in enumerate(self._job.data.dense_names):
            values = _as_source(sections.get(name), examples.dense[:, number])
            arrays[f"number {name}"] = pa.array(values, mask=rows.missing[name])
        for name, hashes in rows.hashes.items():
            if name in rows.bagged:
                lengths = examples.bags.lengths[rows.bagged.index(name)]
                offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
                arrays[f"id {name}"] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(hashes))
            else:
                missing = hashes == _missing_hash(self._job.data.table_of(name), sections.get(name))
                arrays[f"id {name}"] = pa.array(hashes, mask=missing)
        if len(examples.weights):
            arrays["weight"] = examples.weights
        if len(rows.chunk.times):
            arrays["time"] = rows.chunk.times
        return arrays


def statistics_of(job: Job, files: Sequence[Path]) -> Statistics:
    """Return the statistics of the rows whose values are in `files`, at least one.

    Columns are read one after the other. Memory: some 70 bytes for each different value of a column, of
    which there are about EXACT_VALUES in columns of up to a billion values. Raises OSError.
    """
    return _Values(job, files).statistics()


class _Values:
    def __init__(self, job: Job, files: Sequence[Path]) -> None:
        self._job, self._files = job, files
        self._frame = pl.scan_parquet(list(files), glob=False)
        self._names = job.data.label_names
        self._labels = [pl.col(f"label {number}") for number in range(len(self._names))]

    def statistics(self) -> Statistics:
        times = pl.col("time").fill_nan(None) if self._has("time") else pl.lit(None, pl.Float64)
        counts = self._row_of(
            pl.len().alias("rows"),
            times.min().alias("first"),
            times.max().alias("last"),
            *(label.sum().alias(name) for name, label in zip(self._names, self._labels, strict=True)),
        )
        rows = counts["rows"]
        totals = {
            name: LabelTotals(positives=counts[name], label_rate=counts[name] / rows) for name in self._names
        }
        first = totals[self._names[0]]
        return Statistics(
            rows=rows,
            positives=first.positives,
            label_rate=first.label_rate,
            labels=totals if len(totals) > 1 else {},
            weight_mean=self._sum("weight") / rows if self._has("weight") else None,
            time_first=counts["first"],
            time_last=counts["last"],
            numbers=tuple(self._number(name) for name in self._job.data.dense_names),
            ids=tuple(self._id(embedded) for embedded in self._job.embedded_columns),
            counted_values=EXACT_VALUES,
            quantile_error=QUANTILE_ERROR,
            distinct_error=EXACT_DISTINCT**-0.5,
        )

    def _has(self, name: str) -> bool:
        return name in self._frame.collect_schema()

    def _row_of(self, *columns: pl.Expr) -> dict[str, Any]:
        return self._frame.select(*columns).collect(engine="streaming").row(0, named=True)

    def _sum(self, name: str) -> float:
        """Return a sum, the same to the bit with any number of threads."""
        columns = (pl.read_parquet(file, columns=[name], glob=False)[name] for file in self._files)
        return float(sum(column.drop_nulls().to_numpy().sum(dtype=np.float64) for column in columns))

    def _stated(self, missing: pl.Expr) -> dict[str, Any]:
        """Return the fields of a `ColumnStatistics`, except the name."""
        counts = self._row_of(
            pl.len().alias("rows"),
            missing.sum().alias("missing"),
            *(label.sum().alias(f"all {number}") for number, label in enumerate(self._labels)),
            *(
                (label & missing).sum().alias(f"missing {number}")
                for number, label in enumerate(self._labels)
            ),
        )
        absent, present = counts["missing"], counts["rows"] - counts["missing"]
        rates = []
        for number in range(len(self._labels)):
            both, positives = counts[f"missing {number}"], counts[f"all {number}"]
            rates.append(
                LabelRates(
                    label_rate_missing=both / absent if absent else None,
                    label_rate_present=(positives - both) / present if present else None,
                )
            )
        labels = dict(zip(self._names, rates, strict=True)) if len(rates) > 1 else {}
        return {"missing": absent / counts["rows"], **rates[0].model_dump(), "labels": labels}

    def _number(self, name: str) -> NumberStatistics:
        column = pl.col(f"number {name}")
        figures = self._row_of(
            column.count().alias("values"), column.min().alias("least"), column.max().alias("largest")
        )
        # Adding 0.0 turns -0.0 into 0.0; they would be two values.
        rounded = (column.round_sig_figs(QUANTILE_DIGITS) + 0.0).alias("value")
        counts = _counted(self._frame.select(rounded).drop_nulls()).sort("value")
        ordered, values = counts["len"].cum_sum(), figures["values"]
        quantiles = {
            percent(fraction): float(
                counts["value"]
                .gather(ordered.search_sorted(max(1, int(np.ceil(fraction * values)))))
                .clip(figures["least"], figures["largest"])[0]
            )
            for fraction in (FRACTIONS if values else ())
        }
        return NumberStatistics(
            name=name,
            mean=self._sum(f"number {name}") / values if values else None,
            least=figures["least"],
            largest=figures["largest"],
            quantiles=quantiles,
            **self._stated(column.is_null()),
        )

    def _id(self, embedded: EmbeddedColumn) -> IdStatistics:
        name, table = embedded.name, embedded.table
        column = pl.col(f"id {name}")
        lengths, missing = pl.lit(1), column.is_null()
        hashes = self._frame.select(column.alias("value")).drop_nulls()
        if embedded.pooling:
            lengths, missing = column.list.len(), column.list.len() == 0
            hashes = self._frame.filter(~missing).select(column.alias("value").explode())
        sizes = self._row_of(
            pl.len().alias("rows"),
            (lengths * ~missing).sum().alias("values"),
            lengths.max().alias("longest"),
        )
        values = sizes["values"]
        distinct, exact, head = _distinct(hashes, values)
        section = self._job.data.columns.get(name)
        shares = table.growth is None and (section is None or section.fixed_rows is None)
        return IdStatistics(
            name=name,
            kind="multi_hot" if embedded.pooling else "categorical",
            values=values,
            distinct=distinct,
            distinct_exact=exact,
            head=head,
            table_rows=table.rows,
            expected_shared=shared_rows(distinct, table.rows) if shares else 0.0,
            mean_length=values / sizes["rows"] if embedded.pooling else 1.0,
            longest=sizes["longest"],
            **self._stated(missing),
        )


def _distinct(hashes: pl.LazyFrame, values: int) -> tuple[int, bool, dict[str, float]]:
    """Return the number of different values, and the shares of the most frequent.

    Between them is whether all were counted. Of very many values those with a hash in a part of all hashes
    are counted first: where they are few, so are all.
    """
    every = -(-values // EXACT_VALUES) or 1
    sampled = 0
    if every > 1:
        below = hashes.filter(pl.col("value") <= (2**64 - 1) // every)
        sampled = below.select(pl.col("value").n_unique()).collect(engine="streaming").item()
    exact = sampled <= EXACT_DISTINCT
    seen = hashes if exact else hashes.gather_every(every)
    counts = _counted(seen)["len"]
    largest, total = counts.top_k(HEADS[-1]).sort(descending=True), int(counts.sum())
    head = {str(head): int(largest.head(head).sum()) / total if total else 0.0 for head in HEADS}
    return (len(counts) if exact else sampled * every), exact, head


def _counted(values: pl.LazyFrame) -> pl.DataFrame:
    return values.group_by("value").len().collect(engine="streaming")


def _as_source(section: ColumnSection | None, seen: Float32Array) -> NDArray[np.float64]:
    """Turn the numbers that a model sees back into those of the source."""
    values = seen.astype(np.float64)
    if section is None or section.transform == "log":
        with np.errstate(over="ignore"):
            values = np.copysign(np.expm1(np.abs(values)), values)
    if section is not None:
        values = values * section.scale + section.shift
    limit = float(np.finfo(np.float32).max)
    limited: NDArray[np.float64] = values.clip(-limit, limit)
    return limited


def _missing_hash(table: str, section: ColumnSection | None) -> np.uint64:
    """Return the hash of a column's missing values; `table` has the rows of its ids."""
    if section is None or section.fixed_rows is None:
        return np.uint64(hash_bytes(column_number(table), b""))
    return np.uint64(hashes_of_rows(np.array([section.fixed_rows - 1]), section.fixed_rows)[0])
