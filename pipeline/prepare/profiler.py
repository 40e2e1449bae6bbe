"""Makes the data profile while rows pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..config.job import Job
from ..data.batch import Float32Array
from ..data.hashing import column_number
from .cardinality import STANDARD_ERROR
from .profile import DataProfile
from .quantiles import RELATIVE_ERROR
from .tallies import IdTally, NumberTally
from .tapped_rows import TappedRows

# Over all columns so many values are counted by themselves, and so many hashes wait to be counted together.
ALL_COUNTED: Final = 1 << 21
MOST_COUNTED: Final = 1 << 16
WAITING_VALUES: Final = 1 << 22


class Profiler:
    """Counts rows of a job. Memory: some 100 MB however many rows and values there are. One thread.

    Args:
        saved: what `saved` gave of an earlier one, to go on with.
    """

    def __init__(self, job: Job, saved: Mapping[str, NDArray[Any]] | None = None) -> None:
        columns = job.data.columns
        dense = [name for name, column in columns.items() if column.kind == "dense"]
        self._units = {name: columns[name] for name in dense}
        if not columns:
            dense = [f"I{at + 1}" for at in range(job.data.dense_features)]
        self._tables = job.tables
        self._bagged = [table.name for table in job.tables if table.pooling]
        self.counted = max(256, min(MOST_COUNTED, ALL_COUNTED // len(self._tables)))
        own = _by_column(saved or {})
        self._numbers = {name: NumberTally(own.get(f"number {name}")) for name in dense}
        self._ids = {
            table.name: IdTally(
                column_number(table.name),
                self.counted,
                bagged=bool(table.pooling),
                saved=own.get(f"id {table.name}"),
            )
            for table in self._tables
        }
        totals = own.get("all", {}).get("totals")
        # Rows, labels of 1, the sum of weights, the first and the last time.
        self._totals = np.array([0, 0, 0, np.inf, -np.inf]) if totals is None else totals.copy()
        self._weighted = any(column.kind == "weight" for column in columns.values())
        self._waiting: list[TappedRows] = []
        self._waiting_values = 0

    def add(self, rows: TappedRows) -> None:
        """Counts rows, now or later."""
        examples, times = rows.chunk.examples, rows.chunk.times
        self._totals[:3] += [len(rows), (examples.labels > 0).sum(), examples.weights.sum(dtype=np.float64)]
        if len(times):
            self._totals[3] = min(self._totals[3], times.min())
            self._totals[4] = max(self._totals[4], times.max())
        self._waiting.append(rows)
        self._waiting_values += sum(map(len, rows.hashes.values())) + examples.dense.size
        if self._waiting_values >= WAITING_VALUES:
            self._count()

    def saved(self) -> dict[str, NDArray[Any]]:
        """All that was counted, by name; what waited is counted first."""
        self._count()
        tensors = {"all/totals": self._totals}
        for name, numbers in self._numbers.items():
            tensors |= {f"number {name}/{key}": values for key, values in numbers.saved().items()}
        for name, ids in self._ids.items():
            tensors |= {f"id {name}/{key}": values for key, values in ids.saved().items()}
        return tensors

    def profile(self) -> DataProfile:
        """What came of it."""
        self._count()
        rows, positives, weight, first, last = self._totals.tolist()
        timed = np.isfinite(first)
        return DataProfile(
            rows=int(rows),
            positives=int(positives),
            label_rate=positives / rows if rows else None,
            weight_mean=weight / rows if rows and self._weighted else None,
            time_first=first if timed else None,
            time_last=last if timed else None,
            numbers=tuple(tally.profile(name) for name, tally in self._numbers.items()),
            ids=tuple(self._ids[table.name].profile(table.name, table.rows) for table in self._tables),
            counted_values=self.counted,
            quantile_error=RELATIVE_ERROR,
            distinct_error=STANDARD_ERROR,
        )

    def _count(self) -> None:
        waiting, self._waiting, self._waiting_values = self._waiting, [], 0
        if not waiting:
            return
        examples = [rows.chunk.examples for rows in waiting]
        labels = np.concatenate([one.labels for one in examples])
        for at, (name, tally) in enumerate(self._numbers.items()):
            seen = np.concatenate([one.dense[:, at] for one in examples])
            missing = np.concatenate([rows.missing[name] for rows in waiting])
            tally.add(self._as_source(name, seen), missing, labels)
        lengths = {
            name: np.concatenate([one.bags.lengths[at] for one in examples])
            for at, name in enumerate(self._bagged)
        }
        for name, ids in self._ids.items():
            ids.add(np.concatenate([rows.hashes[name] for rows in waiting]), lengths.get(name), labels)

    def _as_source(self, name: str, seen: Float32Array) -> Float32Array:
        """Numbers as the source has them, from what a model sees."""
        section = self._units.get(name)
        values = seen.astype(np.float64)
        if section is None or section.transform == "log":
            with np.errstate(over="ignore"):
                values = np.copysign(np.expm1(np.abs(values)), values)
        if section is not None:
            values = values * section.scale + section.shift
        limit = float(np.finfo(np.float32).max)
        found: Float32Array = values.clip(-limit, limit).astype(np.float32)
        return _whole(found)


def _whole(values: Float32Array) -> Float32Array:
    """Whole numbers that the way there and back has moved by a few bits are whole again."""
    near = np.rint(values)
    moved = np.abs(values - near) <= 1e-6 * np.abs(near)
    return np.where(moved, near, values)


def _by_column(saved: Mapping[str, NDArray[Any]]) -> dict[str, dict[str, NDArray[Any]]]:
    found: dict[str, dict[str, NDArray[Any]]] = {}
    for name, values in saved.items():
        column, _, key = name.rpartition("/")
        found.setdefault(column, {})[key] = values
    return found
