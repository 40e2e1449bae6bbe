"""The input of a job: spans of files, batches of spans."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..config.job import Job
from ..data.bad_rows import BadRows, UnreportedBadRows
from ..data.batch import Batch
from ..data.batches.cutter import cut_into_batches, read_examples
from ..data.batches.negatives import NegativeSampler
from ..data.batches.shuffle import SortedRows, WindowMemory
from ..data.batches.span_plan import plan_spans
from ..data.batches.split import RowDraw, drawn_rows, rows_of_part, rows_of_range
from ..data.batches.split_by_id import IdReader, LastRows, drawn_ids
from ..data.columns.record_schema import RecordSchema
from ..data.files.kafka_client import is_topic
from ..data.files.paths import match_files
from ..data.files.row_names import RowNames, file_name
from ..data.files.text import LineCounts
from ..data.files.topic import offset_spans, offsets_of
from ..data.formats.parquet import IdClasses
from ..data.formats.records import RecordChunk, read_records
from ..data.schema import ColumnObserver, FeatureShape
from ..data.span import OF_ALL, Span, digest_of_all
from ..errors import DataError
from .prepared import PreparedInput

log = logging.getLogger(__name__)


class JobInput:
    """Read what a job's `data` section describes; used by one thread at a time.

    Args:
        job: the job.
        observer: receives the good rows of each chunk, as they are read.
        has_begun: whether the job is one of a saved model; one that resumes has begun, too.

    Raises:
        JobFileError: the label's expression cannot be used.

    Attributes:
        ids: the id classes of all Parquet files that `plan` has inspected.
    """

    def __init__(self, job: Job, observer: ColumnObserver | None = None, *, has_begun: bool = False) -> None:
        self._data = job.data
        self._prepared = PreparedInput(job) if job.data.prepared else None
        self._names = RowNames(job.data.path, job.data.split.draw_by)
        self._observer = observer
        self.ids = IdClasses()
        rows = job.column_rows
        self._shape: FeatureShape | RecordSchema
        # Files to train on have what scoring does without.
        self._trained_shape: RecordSchema | None = None
        if job.data.columns:
            has_begun = has_begun or job.start.resume
            growing_names, unscored = job.growing_columns, [name for name in [job.model.negatives] if name]
            self._shape = RecordSchema(
                job.data, rows, observer, growing_names, has_begun=has_begun, may_lack=unscored
            )
            if unscored:
                self._trained_shape = RecordSchema(job.data, rows, None, growing_names, has_begun=has_begun)
        else:
            growing = tuple(n for n, column in enumerate(job.embedded_columns) if column.grows)
            self._shape = FeatureShape(job.data.dense_features, job.data.categorical_features, rows, growing)
        self._columns = job.embedded_columns
        self._line_counts = LineCounts()
        self._last: LastRows | None = None
        self._all = ""
        self._memory: list[WindowMemory] = []
        self._sorted: SortedRows | None = None
        self._sorted_bad = BadRows(job.data.max_bad_rows)

    def plan(self, patterns: Sequence[str]) -> list[Span]:
        """Return the spans of all files that match, checked against the schema.

        If the job has `data.prepared` and `patterns` are its own, these are the spans of the prepared folder.
        Raises DataError as `plan_spans` and `PreparedInput.plan`.
        """
        if self._prepared is not None and (role := self._prepared.role_of(patterns)) is not None:
            self.ids.add_known(self._prepared.id_classes, self._data.prepared)
            return self._prepared.plan(role)
        data = self._data
        scored = patterns != data.path and patterns in (data.validation_path, data.eval_path)
        return self.plan_raw(patterns, scored=scored)

    def plan_others(self, patterns: Sequence[str], known: Sequence[Span]) -> list[Span]:
        """Return the spans of what matches and is not in `known` ones, with the next numbers; perhaps none.

        These are other files, and later messages of a topic. Raises DataError as `plan_spans`.
        """
        paths = match_files(patterns, self._data.kafka, may_be_none=True)
        ends = dict.fromkeys((span.path for span in known), 0)
        for span in known:
            ends[span.path] = max(ends[span.path], span.stop)
        spans = [
            span for path in paths if path in ends and is_topic(path) for span in self._later(path, ends)
        ]
        files = [path for path in paths if path not in ends]
        spans += self.plan_raw(files) if files else []
        return [replace(span, number=number) for number, span in enumerate(spans, len(known))]

    def _later(self, path: str, ends: Mapping[str, int]) -> list[Span]:
        """Return the spans of a partition's messages after the last one that was planned."""
        (first, end), planned = offsets_of(path, self._data.kafka), ends[path]
        if first > planned:
            log.warning("messages %d to %d of %s are gone: they are not trained on", planned, first - 1, path)
        return offset_spans(path, 0, max(first, planned), end)

    def plan_raw(self, patterns: Sequence[str], *, scored: bool = False) -> list[Span]:
        """Return the spans of the files themselves, not of a folder prepared from them.

        Files that are `scored`, not trained on, may lack the column of hard negatives. They may be parts of
        `data.prepared`. Raises DataError as `plan_spans` and `PreparedInput.parts`.
        """
        if self._prepared is not None and (parts := self._prepared.parts(patterns)):
            return parts
        data = self._data
        shape = self._shape if scored else self._trained_shape or self._shape
        return plan_spans(patterns, data.format, data.span_bytes, shape, self.ids, data.kafka)

    def chunks(self, span: Span, bad_rows: BadRows) -> Iterator[RecordChunk]:
        """Yield the rows of a span's part and range, in order.

        If rows are sorted in memory, the span with the first row reports all bad rows. Raises DataError for a
        file that cannot be read, a folder that was prepared again since the span was planned, and past the
        limit of `bad_rows`.
        """
        if self._prepared is not None:
            self._prepared.check_same(span)
        if span.kind == "sorted":
            return self._sorted_span(span, bad_rows)
        return rows_of_range(lambda reported: self._of_part(span, reported), span, bad_rows)

    def batches(
        self,
        span: Span,
        *,
        epoch: int,
        seed: int,
        batch: int,
        shuffle_window: int,
        bad_rows: BadRows,
        negatives: NegativeSampler | None = None,
    ) -> Iterator[Batch]:
        """Yield the batches of a span, as `cut_into_batches` does.

        `negatives` chooses the rows to keep. Raises as `chunks` does.
        """
        chunks = self.chunks(span, bad_rows)
        if negatives is not None:
            prepared = self._prepared is not None and self._prepared.has(span)
            name = file_name(span.path) if prepared else self._names.of(span.path)
            chunks = negatives.kept(span, name, chunks)
        examples = (chunk.examples for chunk in chunks)
        # Memory is reused from span to span. A second iterator at the same time finds none and makes its own.
        memory = self._memory.pop() if self._memory else WindowMemory()
        try:
            yield from cut_into_batches(
                examples,
                span,
                epoch=epoch,
                seed=seed,
                batch=batch,
                shuffle_window=shuffle_window,
                memory=memory,
            )
        finally:
            self._memory.append(memory)

    def _of_part(self, span: Span, bad_rows: BadRows) -> Iterator[RecordChunk]:
        if self._prepared is not None and self._prepared.has(span):
            draw = self._prepared.draw_of(span)
            return self._part(span, self._prepared.chunks(span), draw)
        name = self._names.of(span.path)
        return self._part(span, self._raw(span, bad_rows), lambda done, count: (span, name, done, count))

    def _part(
        self, span: Span, chunks: Iterator[RecordChunk], draw: Callable[[int, int], RowDraw]
    ) -> Iterator[RecordChunk]:
        """Return the rows of the span's part; all rows if it has none.

        `draw` makes what rows are drawn by of their first number in the span and their number.
        """
        split = self._data.split
        if not span.part:
            return chunks
        if split.by == "fraction":
            return rows_of_part(
                chunks, lambda done, chunk: drawn_rows(*draw(done, len(chunk.examples)), split)
            )
        ids_of = IdReader(self._columns, split.column, tuple(self._data.columns_as("group")))
        if split.by == "column":
            return rows_of_part(chunks, lambda _, chunk: drawn_ids(ids_of(chunk.examples), span.part, split))
        last = self._last_rows(ids_of)
        self._require_same_files(span)
        return rows_of_part(chunks, lambda done, chunk: last.mask(span, done, len(chunk.examples)))

    def _last_rows(self, ids_of: IdReader) -> LastRows:
        """Return the last rows of all ids of `data.path`, which is read once."""
        if self._last is None:
            spans, bad_rows = self._plan_all(), UnreportedBadRows()
            whole = [(span, self._of_part(span, bad_rows)) for span in spans]
            self._last = LastRows.find(whole, ids_of)
        return self._last

    def _raw(self, span: Span, bad_rows: BadRows) -> Iterator[RecordChunk]:
        if isinstance(self._shape, RecordSchema):
            yield from read_records(span, self._shape, bad_rows, line_counts=self._line_counts)
            return
        data = self._data
        for examples in read_examples(span, data.format, self._shape, bad_rows, self._observer, data.kafka):
            yield RecordChunk(examples, np.zeros(0))

    def _sorted_span(self, span: Span, bad_rows: BadRows) -> Iterator[RecordChunk]:
        rows = self._sorted_rows()
        self._require_same_files(span)
        if span.start == 0:
            bad_rows.add_all(self._sorted_bad)
        yield from rows.chunks(span.start, span.stop)

    def _sorted_rows(self) -> SortedRows:
        """Return all rows of `data.path`, read once."""
        if self._sorted is None:
            spans = self._plan_all()
            chunks = (chunk for span in spans for chunk in self._of_part(span, self._sorted_bad))
            self._sorted = SortedRows(chunks, self._data.sort_limit_bytes, self._data.path)
        return self._sorted

    def _plan_all(self) -> list[Span]:
        """Return the spans of all files, on which the rows of each span depend."""
        spans = self.plan(self._data.path)
        self._all = digest_of_all(spans)
        return spans

    def _require_same_files(self, span: Span) -> None:
        """Raise DataError if a span was planned when there were other files."""
        if span.prepared.startswith(OF_ALL) and span.prepared != self._all:
            raise DataError(
                "its files are others than when the job planned its input, or other ones on this machine, and"
                " which rows are in which part depends on all of them",
                where=", ".join(self._data.path),
                remedy="do not add, change or remove files that it names while a job runs, and resume the job"
                " with those of its start",
            )
