"""A look at a job's files and rows before it runs.

Nothing is started, and torch is not imported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ..config.job import Job
from ..data.bad_rows import UnreportedBadRows, printable
from ..data.schema import ColumnObserver
from ..data.span import Span
from ..errors import DataError
from ..input.job_input import JobInput
from ..input.plan import plan_files
from ..types import Uint64Array
from .check_rows import ShownRow, first_rows
from .ineffective import job_warnings

CHECK_SECONDS = 0.7
"""Time for reading rows, after the files were planned."""
_ROWS: Final = 100_000
_PLACES: Final = 24
_PLACE_BYTES: Final = 1 << 18
_SAMPLES: Final = 3


@dataclass(frozen=True)
class SharedRows:
    """How many of a hashed table's ids share a row, among those looked at.

    Attributes:
        ids: different ids that were seen.
        rows: rows of the table.
        share: share of the values whose id shares its row with another id that was seen.
        grows: whether each id has a row of its own, up to `rows`.
        columns: the columns whose ids have its rows.
    """

    name: str
    ids: int
    rows: int
    share: float
    grows: bool
    columns: Sequence[str] = ()


@dataclass(frozen=True)
class JobCheck:
    """What was found.

    Attributes:
        files: files to train on.
        looked_at: rows that were read; `bad` of them are malformed, `bad_samples` says why some are.
        label_means: mean of each label.
        rows: the first rows; empty for a topic.
        tables: tables of ids by hash.
        warnings: keys that have no effect, trainers that do not synchronize.
    """

    files: int
    looked_at: int
    bad: int
    bad_samples: Sequence[str]
    label_means: Mapping[str, float]
    rows: Sequence[ShownRow]
    tables: Sequence[SharedRows]
    warnings: Sequence[str]


class _BadRows(UnreportedBadRows):
    """Keep why some rows are bad, without the numbers of their lines."""

    def __init__(self) -> None:
        super().__init__()
        self.why: list[str] = []

    def add(self, path: str, line: Callable[[], int], why: str, text: bytes) -> None:
        """Count a row, and keep the faults of the first ones."""
        super().add(path, line, why, text)
        if len(self.why) < _SAMPLES:
            self.why.append(f"{path}: {why}: {printable(text)}")


def check_job(job: Job) -> JobCheck:
    """Check a job's files against its schema, and look at some of its rows.

    Every file is opened and its first rows are checked, as when the job starts; then rows at places all over
    the files are read. Raises DataError and JobFileError as a job's start does.
    """
    source = JobInput(job, observer := ColumnObserver())
    spans, _, _ = plan_files(source, job)
    names = [column.name for column in job.embedded_columns]
    hashes: dict[str, list[Uint64Array]] = {name: [] for name in names}
    bad, rows, labels = _BadRows(), 0, []
    until = time.monotonic() + CHECK_SECONDS
    for place in _places(spans):
        for chunk in source.chunks(place, bad):
            rows += len(chunk.examples)
            labels.append(np.vstack([chunk.examples.labels[None], *chunk.examples.other_labels[:, None]]))
            for name in names:
                if name in observer.hashes:
                    hashes[name].append(observer.hashes[name])
            break
        if rows >= _ROWS or time.monotonic() > until:
            break
    if not rows:
        raise DataError(
            f"has no usable row among those looked at{_because(bad.why)}",
            where=job.data.path[0],
            remedy="correct [data.columns] or the rows",
        )
    means = np.concatenate(labels, axis=1).mean(axis=1)
    return JobCheck(
        files=len({span.path for span in spans}),
        looked_at=rows + bad.count,
        bad=bad.count,
        bad_samples=bad.why,
        label_means=dict(zip(job.data.label_names or ("label",), map(float, means), strict=True)),
        rows=first_rows(job, spans[0]),
        tables=list(_shared_rows(job, hashes)),
        warnings=job_warnings(job),
    )


def _because(why: Sequence[str]) -> str:
    return f": {why[0]}" if why else ""


def _places(spans: Sequence[Span]) -> Iterator[Span]:
    """Yield short pieces all over the spans, those far apart first."""
    places = [place for span in _spread(spans) for place in _in_span(span, -(-_PLACES // len(spans)))]
    order = sorted(range(len(places)), key=lambda number: int(f"{number:016b}"[::-1], 2))
    return (places[number] for number in order)


def _spread(spans: Sequence[Span]) -> list[Span]:
    if len(spans) <= _PLACES:
        return list(spans)
    return [spans[number * (len(spans) - 1) // (_PLACES - 1)] for number in range(_PLACES)]


def _in_span(span: Span, count: int) -> list[Span]:
    size = span.stop - span.start
    if span.kind == "bytes" and size > 2 * _PLACE_BYTES:
        count = min(count, size // _PLACE_BYTES)
        starts = [span.start + number * (size - _PLACE_BYTES) // max(1, count - 1) for number in range(count)]
        return [replace(span, start=start, stop=start + _PLACE_BYTES) for start in starts]
    if span.kind == "row_groups":
        count = min(count, size)
        return [
            replace(span, start=group, stop=group + 1)
            for group in (span.start + number * size // count for number in range(count))
        ]
    return [span]


def _shared_rows(job: Job, hashes: Mapping[str, Sequence[Uint64Array]]) -> Iterator[SharedRows]:
    """Yield each table of hashed ids; a prepared folder shows none."""
    fixed = {column.table for column in job.data.table_columns if column.fixed_rows is not None}
    for table in job.tables:
        parts = [part for column in table.columns for part in hashes.get(column.name, [])]
        if table.name in fixed or not parts:
            continue
        ids, times = np.unique(np.concatenate(parts), return_counts=True)
        # The row of an id is its hash's upper half, scaled to the rows of the table.
        rows = ((ids >> np.uint64(32)) * np.uint64(table.rows)) >> np.uint64(32)
        _, row, ids_of_row = np.unique(rows, return_inverse=True, return_counts=True)
        shared = 0.0 if table.growth else float(times[ids_of_row[row] > 1].sum() / max(1, times.sum()))
        columns = [column.name for column in table.columns]
        yield SharedRows(table.name, len(ids), table.rows, shared, table.growth is not None, columns)
