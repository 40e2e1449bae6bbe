"""The source of a preparation: its settings, columns, pieces and rows.

Rows come with the hashes of their ids and the masks of their missing numbers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from ..config.column_kinds import StoredAs
from ..config.columns import ColumnSection
from ..config.job import Job
from ..config.tables import TableSettings
from ..data.bad_rows import BadRows
from ..data.columns.kinds.registry import VALUES
from ..data.files.paths import file_size_bytes, is_url, read_errors
from ..data.formats.records import RecordChunk
from ..data.hashing import column_number
from ..data.prepared.agreement import role_paths, row_settings
from ..data.prepared.manifest import ROLES, DataRole, PreparationSettings, PreparedColumn, SourceFile
from ..data.schema import LABEL, ColumnObserver
from ..data.span import Span
from ..input.job_input import JobInput
from ..input.plan import plan_files
from ..types import Mask, Uint64Array


@dataclass(frozen=True, slots=True)
class SourcePiece:
    """A span of the source, and its role."""

    role: DataRole
    span: Span


def plan_pieces(source: JobInput, job: Job) -> list[SourcePiece]:
    """Return all spans of the job's input, those of training first.

    The files are checked as at the start of a job. Raises DataError as `plan_files` does.
    """
    parts = zip(ROLES, plan_files(source, job), strict=True)
    return [SourcePiece(role, span) for role, spans in parts for span in spans]


def preparation_settings(job: Job, pieces: list[SourcePiece]) -> PreparationSettings:
    """Return the settings of a job's preparation, with its files.

    Raises DataError for a file that cannot be read.
    """
    files = {piece.span.path: piece.role for piece in pieces}
    return PreparationSettings(
        data=row_settings(job.data),
        tables={table.name: table.rows for table in job.tables},
        paths={role: role_paths(job.data).get(role, []) for role in ROLES},
        span_bytes=job.data.span_bytes,
        files=tuple(_source_file(path, role) for path, role in files.items()),
        growing=job.growing_tables,
    )


def columns_of_job(job: Job) -> tuple[PreparedColumn, ...]:
    """Return the columns of the parts, by their kinds; weights of ids come last."""
    sections = dict(job.data.columns) or _click_columns(job)
    tables = {column.name: column.table for column in job.embedded_columns}
    columns = [
        _column(name, section, tables.get(name))
        for stored_as in get_args(StoredAs)
        for name, section in sections.items()
        if stored_as and section.of_kind.stored_as == stored_as
    ]
    weights = [
        PreparedColumn(
            name=f"{name}:weights", kind="item_weights", source=section.weights, stored="list<float32>"
        )
        for name, section in sections.items()
        if section.weights
    ]
    return (*columns, *weights)


@dataclass(frozen=True, slots=True)
class ObservedRows:
    """Good rows of a source.

    Attributes:
        chunk: the rows in the form in which a model gets them.
        hashes, missing: hashes and missing values of the same rows, see `ColumnObserver`.
        bagged: names of the multi-hot columns, in the order of the bags.
    """

    chunk: RecordChunk
    hashes: Mapping[str, Uint64Array]
    missing: Mapping[str, Mask]
    bagged: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.chunk.examples)

    def slice(self, start: int, stop: int) -> ObservedRows:
        """Return rows start to stop - 1."""
        if (start, stop) == (0, len(self)):
            return self
        hashes = {name: h[start:stop] for name, h in self.hashes.items() if name not in self.bagged}
        for name, lengths in zip(self.bagged, self.chunk.examples.bags.lengths, strict=True):
            first, last = int(lengths[:start].sum()), int(lengths[:stop].sum())
            hashes[name] = self.hashes[name][first:last]
        missing = {name: mask[start:stop] for name, mask in self.missing.items()}
        return ObservedRows(self.chunk.slice(start, stop), hashes, missing, self.bagged)


class ObservedInput:
    """Read the source of a job; used by one thread at a time.

    Attributes:
        source: the job's input, which plans the spans.
    """

    def __init__(self, job: Job) -> None:
        self._observer = ColumnObserver()
        self.source = JobInput(job, self._observer)
        self._bagged = tuple(column.name for column in job.embedded_columns if column.pooling)

    def rows(self, span: Span, bad_rows: BadRows, skip: int = 0) -> Iterator[ObservedRows]:
        """Yield a span's good rows in order, without the first `skip`.

        Raises as `JobInput.chunks`.
        """
        for chunk in self.source.chunks(span, bad_rows):
            rows = ObservedRows(chunk, self._observer.hashes, self._observer.missing, self._bagged)
            passed = min(skip, len(rows))
            skip -= passed
            if passed < len(rows):
                yield rows.slice(passed, len(rows))


def _source_file(path: str, role: DataRole) -> SourceFile:
    with read_errors(path):
        modified = None if is_url(path) else os.stat(path).st_mtime_ns
        return SourceFile(path=path, role=role, bytes=file_size_bytes(path), modified_ns=modified)


def _click_columns(job: Job) -> dict[str, ColumnSection]:
    columns = {LABEL: ColumnSection(kind="label")}
    columns |= {f"I{number + 1}": ColumnSection(kind="dense") for number in range(job.data.dense_features)}
    return columns | {column.name: ColumnSection(kind="categorical") for column in job.embedded_columns}


def _column(name: str, section: ColumnSection, table: TableSettings | None) -> PreparedColumn:
    of_kind = section.of_kind
    stored = {"categorical": "int32", "multi_hot": "list<int32>", "timestamp": "float64", "group": "uint64"}
    if table is not None and table.growth is not None:
        stored |= {"categorical": "uint64", "multi_hot": "list<uint64>"}
    return PreparedColumn(
        name=name,
        kind=of_kind.stored_as,
        source=(section.source or name) if of_kind.in_file else "",
        stored=stored.get(of_kind.stored_as, "float32"),
        transform=VALUES[section.kind].description(section),
        table_rows=None if table is None else table.rows,
        hash_column=None if table is None or section.fixed_rows else column_number(table.name),
        pooling=section.pooling if of_kind.has_bag else "",
    )
