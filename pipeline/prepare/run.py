"""One call of `shadowsync prepare`: missing parts, statistics, manifest."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, TypeAlias

from ..atomic_file import sha256_of, sync_directory, sync_file, unfinished_path, unwritable, write_text
from ..config.job import Job
from ..data.bad_rows import BadRows, too_many_bad_rows
from ..data.prepared.manifest import (
    MANIFEST_NAME,
    ROLES,
    PreparedManifest,
    PreparedPart,
)
from ..errors import DataError
from .folder import VALUES_SUFFIX, SavedProgress, clear_unfinished
from .part_values import ValuesWriter, statistics_of
from .part_writer import PartWriter
from .source import ObservedInput, ObservedRows, SourcePiece, columns_of_job
from .statistics_page import write_statistics


@dataclass(frozen=True, slots=True)
class PreparationStatus:
    """The status of a preparation.

    Attributes:
        bytes_done: bytes of the source that are done.
        bytes_all: all bytes of the source.
        rows: number of good rows so far.
    """

    bytes_done: int
    bytes_all: int
    rows: int


StatusCallback: TypeAlias = Callable[[PreparationStatus], None]


class PreparationRun:
    """Writer of the parts that do not exist yet; used by one thread.

    Attributes:
        save_share: largest share of the time for saving the progress, which names all parts so far.
            After an interrupt the work since the last save is repeated.
    """

    save_share: ClassVar[float] = 0.05

    def __init__(
        self,
        job: Job,
        folder: Path,
        source: ObservedInput,
        progress: SavedProgress,
        on_progress: StatusCallback,
    ) -> None:
        self._job, self._folder, self._source = job, folder, source
        self._progress, self._on_progress = progress, on_progress
        self._columns = columns_of_job(job)
        self._digest = progress.order.digest
        row_bytes = 4 * sum(1 for column in self._columns)
        # A compressed file is one piece, whatever its size.
        self._stream_rows = max(1, job.data.span_bytes // row_bytes)
        self._status = PreparationStatus(0, 0, progress.rows)
        self._saved_at = self._saving_seconds = 0.0

    def pieces(self, pieces: list[SourcePiece]) -> None:
        """Write the parts of all pieces that are not done."""
        sizes = _sizes_bytes(self._progress, pieces)
        for number, piece in enumerate(pieces):
            self._status = PreparationStatus(sum(sizes[:number]), sum(sizes), self._progress.rows)
            if number >= self._progress.pieces:
                self._piece(piece)
            self._check_bad_rows(
                piece, whole=piece.role not in {later.role for later in pieces[number + 1 :]}
            )
        self._save()
        self._status = PreparationStatus(sum(sizes), sum(sizes), self._progress.rows)
        self._on_progress(self._status)

    def _check_bad_rows(self, piece: SourcePiece, *, whole: bool) -> None:
        bad = self._progress.bad_rows.get(piece.role)
        if bad is None or not bad.count:
            return
        rows = sum(part.rows for part in self._progress.parts if part.role == piece.role) + bad.count
        if text := too_many_bad_rows(bad.count, rows, self._job.data, whole=whole):
            remedy = "correct the rows or the job file's [data], or raise data.max_bad_fraction"
            raise DataError(f"{text}; the first is {bad.first[0]}", where=piece.span.path, remedy=remedy)

    def _piece(self, piece: SourcePiece) -> None:
        progress, span = self._progress, piece.span
        known = progress.bad_rows.get(piece.role)
        bad = BadRows(self._job.data.max_bad_rows)
        if known:
            bad.count, bad.first = known.count, list(known.first)
        first = sum(part.rows for part in progress.parts if _is_of(part, piece))
        rows = self._source.rows(span, bad, first)
        at_once = self._stream_rows if span.kind == "stream" else None
        for part_rows in _in_parts(rows, at_once):
            first += self._part(piece, first, part_rows)
            if at_once is not None:
                self._save_if_due()
        if not first:
            # A piece without rows gets an empty part, so that parts are numbered like the source's spans.
            self._part(piece, 0, iter(()))
        progress.bad_rows[piece.role] = bad
        progress.pieces += 1
        self._save_if_due()

    def _save_if_due(self) -> None:
        if (time.monotonic() - self._saved_at) * self.save_share >= self._saving_seconds:
            self._save()

    def _save(self) -> None:
        began = time.monotonic()
        self._progress.save(self._folder)
        self._saved_at = time.monotonic()
        self._saving_seconds = self._saved_at - began

    def _part(self, piece: SourcePiece, first_row: int, rows: Iterator[ObservedRows]) -> int:
        """Write one part; return its number of rows."""
        number = sum(part.role == piece.role for part in self._progress.parts)
        path = self._folder / f"{piece.role}-{number:05d}.parquet"
        unfinished = unfinished_path(path)
        try:
            values = path.with_suffix(VALUES_SUFFIX) if piece.role == "train" else None
            writer, positives = self._write(unfinished, values, rows)
            sync_file(unfinished)
            size, digest = unfinished.stat().st_size, sha256_of(unfinished)
            if not self._progress.parts:
                # The folder says whose it is before it has a part.
                self._progress.save(self._folder)
            unfinished.replace(path)
            sync_directory(self._folder)
        except OSError as error:
            raise unwritable(path, error) from error
        finally:
            unfinished.unlink(missing_ok=True)
        span, progress = piece.span, self._progress
        part = PreparedPart(
            name=path.name,
            role=piece.role,
            source=span.path,
            kind=span.kind,
            start=span.start,
            stop=span.stop,
            first_row=first_row,
            rows=writer.rows,
            row_groups=writer.row_groups,
            bytes=size,
            sha256=digest,
        )
        progress.parts.append(part)
        progress.positives[piece.role] = progress.positives.get(piece.role, 0) + positives
        self._status = replace(self._status, rows=progress.rows)
        return writer.rows

    def _write(
        self, path: Path, values_path: Path | None, rows: Iterator[ObservedRows]
    ) -> tuple[PartWriter, int]:
        """Write rows to a file; return its closed writer, and the number of positives.

        Their values are written to `values_path`, if any.
        """
        positives = 0
        values = ValuesWriter(self._job, values_path) if values_path else None
        writer = PartWriter(path, self._columns, self._digest)
        try:
            for some in rows:
                writer.write(some.chunk)
                positives += int((some.chunk.examples.labels > 0).sum())
                if values is not None:
                    values.write(some)
                self._on_progress(replace(self._status, rows=self._status.rows + writer.rows))
            writer.close()
            if values is not None:
                values.close()
        except BaseException:
            writer.discard()
            if values is not None:
                values.discard()
            raise
        return writer, positives

    def commit(self) -> PreparedManifest:
        """Write statistics, then the manifest; then remove the progress.

        Raises DataError if a role has no row, ResourceError if something cannot be written.
        """
        progress = self._progress
        for role in progress.positives:
            if not progress.summary(role).rows:
                raise DataError(
                    "these files have no row that can be used",
                    where=", ".join(progress.order.paths[role]),
                    remedy="change the columns in [data] to fit the files",
                )
        manifest = PreparedManifest(
            order_digest=self._digest,
            order=progress.order,
            columns=self._columns,
            roles=tuple(progress.summary(role) for role in ROLES),
            id_classes=dict(self._source.source.ids.by_column),
            parts=tuple(progress.parts),
        ).sealed()
        parts = [self._folder / part.name for part in progress.parts if part.role == "train" and part.rows]
        values = [path.with_suffix(VALUES_SUFFIX) for path in parts]
        write_statistics(self._folder, statistics_of(self._job, values), manifest)
        write_text(self._folder / MANIFEST_NAME, manifest.model_dump_json(indent=1) + "\n")
        clear_unfinished(self._folder, {part.name for part in progress.parts})
        SavedProgress.remove(self._folder)
        return manifest


def _is_of(part: PreparedPart, piece: SourcePiece) -> bool:
    span = piece.span
    return (part.role, part.source, part.start) == (piece.role, span.path, span.start)


def _sizes_bytes(progress: SavedProgress, pieces: list[SourcePiece]) -> list[int]:
    """Return each piece's size: an equal share of its file's bytes."""
    files = {(file.path, file.role): file.bytes or 1 for file in progress.order.files}
    shares = Counter((piece.span.path, piece.role) for piece in pieces)
    return [files[key] // shares[key] for key in ((piece.span.path, piece.role) for piece in pieces)]


def _in_parts(rows: Iterator[ObservedRows], at_once: int | None) -> Iterator[Iterator[ObservedRows]]:
    """Yield the rows of each part, `at_once` rows each.

    The last part may have fewer. With None all rows are one part. Without rows there is no part. The caller
    must exhaust each iterator before it requests the next.
    """
    pending: list[ObservedRows] = []

    def part() -> Iterator[ObservedRows]:
        left = at_once
        while chunk := (pending.pop() if pending else next(rows, None)):
            if left is not None and len(chunk) > left:
                pending.append(chunk.slice(left, len(chunk)))
                chunk = chunk.slice(0, left)
            yield chunk
            if left is not None:
                left -= len(chunk)
                if not left:
                    return

    while pending or (first := next(rows, None)) is not None:
        if not pending:
            assert first is not None
            pending.append(first)
        yield part()
