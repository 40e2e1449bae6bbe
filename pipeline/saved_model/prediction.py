"""Predictions for files and for columns in memory, one for each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from ..atomic_file import atomic_file
from ..checkpoint.saved import Place
from ..config.column_kinds import KINDS
from ..config.columns import suggest
from ..config.job import Job
from ..data.bad_rows import SAMPLES_KEPT
from ..data.batch import Batch
from ..data.batches.cutter import batch_to_score
from ..data.batches.span_plan import plan_spans
from ..data.files.paths import file_identity
from ..data.formats.parquet import IdClass, check_parquet
from ..errors import CheckpointError, DataError
from ..jobfile.tables_in_memory import no_table
from ..types import Float32Array, IndexArray, Mask
from .input_rows import InputRows, InputSchema, input_schema, read_input, rows_of_columns, value_array
from .untrained_ids import UntrainedIds

NOT_FINITE = "the model's logit is not finite"
_ROW_COLUMNS = ("file", "row")
_LABEL_COLUMNS = ("probability", "logit", "label")
_OWN_LABEL_COLUMNS = ("score", "label")


class ScoringModel(Protocol):
    """A model that scores rows, such as `SavedModel`."""

    @property
    def folder(self) -> Place:
        """Folder of the checkpoint, or its place in a storage."""

    @property
    def job(self) -> Job:
        """The job that trained the model."""

    @property
    def id_classes(self) -> Mapping[str, IdClass]:
        """Whether training read texts or integers as the ids of each column."""

    def ids_without_row(self, batch: Batch) -> dict[str, tuple[int, int]]:
        """Count the ids of a batch as `SavedModel.ids_without_row`."""

    def logits(self, batch: Batch, owner: IndexArray | None = None) -> Float32Array:
        """Compute the logits of a batch as `SavedModel.logits`, float32 [B] or [B, T]."""


@dataclass
class Predicted:
    """Counts of rows, with and without a score.

    Attributes:
        rows: number of all rows.
        without_score: number of rows that could not be read or whose logit is not finite.
        first: file, row and reason of the first SAMPLES_KEPT rows without a score.
        ids: the ids of the rows that were read, and those without a trained row.
    """

    ids: UntrainedIds
    rows: int = 0
    without_score: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, rows: InputRows, logits: Float32Array) -> None:
        """Count a chunk with its logits, float32 [n], or [n, T] of T labels."""
        without = np.flatnonzero(~has_scores(logits)).tolist()
        self.rows += len(rows.numbers)
        self.without_score += len(without)
        for row in without[: SAMPLES_KEPT - len(self.first)]:
            self.first.append(f"{rows.path}:{rows.numbers[row]}: {rows.why.get(row, NOT_FINITE)}")


def predict_columns(model: ScoringModel, columns: Any) -> Float32Array:
    """Compute probabilities, float32 [n], of n rows in memory.

    With T labels they are [n, T]. A row without a score has NaN. If training read texts in a column, as it
    always does from text files, integers are converted to their decimal digits. If training read no value in
    a column, texts and integers are used as they are.

    Args:
        model: the model.
        columns: a dict of columns, a list of rows, each a dict, or a table of pandas, polars or pyarrow,
            with the columns of the job's files; the label is not needed.

    Raises:
        DataError: a column is missing or has an unsuitable type, such as texts where training read integers.
        CheckpointError: rows were scored, but no logit is finite.
    """
    where = "the columns"
    schema = input_schema(model.job, model.id_classes)
    try:
        frame: Any = _columns_of(columns, where) if isinstance(columns, list) else columns
        needed = set(schema.read.sources)
        if hasattr(frame, "loc") and needed <= {*frame.columns, *frame.index.names}:
            # Of pandas: what is not needed may be there twice, or hold anything.
            frame = frame.loc[:, [name in needed for name in frame.columns]]
        if isinstance(frame, dict):
            frame = {
                name: value_array(values) if isinstance(values, list) else values
                for name, values in frame.items()
            }
        table = pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise no_table(error, where) from error
    rows = _rows_of_table(_with_missing(table, schema), schema, where)
    scorer = _Scorer(model)
    scores = shown_scores(model.job, scorer.logits_of(rows))
    scorer.check()
    return scores


def _columns_of(rows: list[Any], where: str) -> dict[str, list[Any]]:
    """Return rows as columns; raises DataError unless each row has all of them."""
    remedy = "give a dict of columns, or a list of rows as dicts, with None where a value is missing"
    if not all(isinstance(row, dict) for row in rows):
        raise DataError("are a list of something else than rows", where=where, remedy=remedy)
    columns: dict[str, list[Any]] = {name: [] for row in rows for name in row}
    for number, row in enumerate(rows):
        for name, values in columns.items():
            if name not in row:
                raise DataError(
                    f"row {number} has no {name!r}, which others have", where=where, remedy=remedy
                )
            values.append(row[name])
    return columns


def _with_missing(table: pa.Table, schema: InputSchema) -> pa.Table:
    """Return a table whose columns of ids without any value have no type.

    Pandas makes them float64.
    """
    for name, kind in schema.kinds_in_file.items():
        hashed = kind in KINDS and KINDS[kind].hashes_values
        if not hashed or table.column_names.count(name) != 1:
            continue
        place, column = table.schema.get_field_index(name), table.column(name)
        if pa.types.is_floating(column.type) and pc.all(pc.is_null(column, nan_is_null=True)).as_py():
            table = table.set_column(place, name, pa.nulls(len(table)))
    return table


def _rows_of_table(table: pa.Table, schema: InputSchema, where: str) -> InputRows:
    """Return the rows of a table in memory, as a model needs them.

    Raises DataError, about `where`, for a column that is missing or has an unsuitable type.
    """
    check_parquet(where, table.schema, schema.read)
    arrays = {name: _one_array(table.column(name)) for name in schema.read.sources}
    return rows_of_columns(arrays, schema, [], where, np.arange(1, len(table) + 1))


def label_number(model: ScoringModel, label: str) -> int:
    """Return which of the model's labels has this name; the first for "". Raises DataError for none."""
    names = list(model.job.data.label_names)
    if label and label not in names:
        raise DataError(f"there is no label {label!r}", where="--label", remedy=suggest(label, names))
    return names.index(label) if label else 0


def predict_files(model: ScoringModel, patterns: Sequence[str]) -> Iterator[Float32Array]:
    """Yield the probabilities of files, chunk by chunk, in the order of rows.

    A row without a score has NaN. Raises as `score_files`.
    """
    for _, logits in score_files(model, patterns):
        yield shown_scores(model.job, logits)


def score_files(
    model: ScoringModel, patterns: Sequence[str], keep: Sequence[str] = ()
) -> Iterator[tuple[InputRows, Float32Array]]:
    """Yield the rows of files in order, chunk by chunk, and their logits.

    The rows have the columns `keep`. The logit of a row without a score is NaN. Raises DataError for files
    that cannot be read or lack a column, and at the end CheckpointError if rows were scored but no logit is
    finite.
    """
    scorer = _Scorer(model)
    for rows in _rows_of(patterns, input_schema(model.job, model.id_classes), keep):
        yield rows, scorer.logits_of(rows)
    scorer.check()


def write_predictions(
    model: ScoringModel, patterns: Sequence[str], out: Path, keep: Sequence[str] = ()
) -> Predicted:
    """Score every row of the files and write `out`.

    The file is CSV if its name ends in .csv, otherwise Parquet. It appears completely or not at all. Rows are
    scored in order and in bounded memory. The columns of the file are:

    - `file`;
    - `row`, from 1: the line in a text file, or the number of the row in Parquet;
    - `probability` and `logit`; null for a row that cannot be read or whose logit is not finite;
    - with `model.scores = "own"` instead of these `score`;
    - `label`; null if the row has none;
    - of several labels instead `probability_NAME`, `logit_NAME` and `label_NAME` of each;
    - the columns `keep`.

    Raises DataError for files that cannot be used, ResourceError if `out` cannot be written, and
    CheckpointError if rows were scored but no logit is finite.
    """
    added = {*_ROW_COLUMNS, *(name for names in _columns_of_labels(model.job) for name in names)}
    taken = [name for name in keep if name in added]
    if taken:
        raise DataError(
            f"already has a column {taken[0]!r}", where=str(out), remedy=f"drop --keep {taken[0]}"
        )
    done = Predicted(UntrainedIds(column.name for column in model.job.embedded_columns))
    schema: pa.Schema | None = None
    writer: pq.ParquetWriter | pacsv.CSVWriter | None = None
    with atomic_file(out) as file:
        try:
            for rows, logits in score_files(model, patterns, keep):
                _require_other(out, rows.path)
                done.add(rows, logits)
                if len(rows.scored):
                    done.ids.add(model.ids_without_row(batch_to_score(rows.examples)))
                chunk = _table(model.job, logits, rows, schema)
                if writer is None:
                    schema = chunk.schema
                    writer = _open_writer(file, out, schema)
                with _kept_errors(rows):
                    writer.write_table(chunk)
            if writer is None:
                raise DataError("the files have no rows", where=", ".join(patterns))
            writer.close()
        except BaseException:
            if isinstance(writer, pq.ParquetWriter):
                # Otherwise the writer's finalizer would write the end to a closed file.
                writer.is_open = False
            raise
    return done


def _require_other(out: Path, path: str) -> None:
    """Raise DataError if `out` is the file at `path`, which would be lost."""
    if file_identity(str(out)) == file_identity(path):
        raise DataError("is a file to score", where=f"--out {out}", remedy="give another file")


def _open_writer(file: BinaryIO, out: Path, schema: pa.Schema) -> pq.ParquetWriter | pacsv.CSVWriter:
    if out.suffix.lower() != ".csv":
        return pq.ParquetWriter(file, schema, compression="zstd")
    for column in schema:
        if pa.types.is_nested(column.type):
            raise DataError(
                f"column {column.name} has lists, which CSV cannot have",
                where=str(out),
                remedy=f"drop --keep {column.name}, or write a .parquet file",
            )
    return pacsv.CSVWriter(file, schema)


def shown_scores(job: Job, logits: Float32Array) -> Float32Array:
    """Return the probabilities of logits; scores of a model's own as they are."""
    return probability_of(logits) if job.model.has_logits else logits


def probability_of(logits: Float32Array) -> Float32Array:
    """Compute 1 / (1 + exp(-logit)), float32 of the same shape; NaN stays NaN."""
    z = logits.astype(np.float64)
    decay = np.exp(-np.abs(z))
    values: Float32Array = (np.where(z >= 0, 1.0, decay) / (1.0 + decay)).astype(np.float32)
    values[np.isnan(logits)] = np.nan
    return values


def logits_of(model: ScoringModel, rows: InputRows, owner: IndexArray | None = None) -> Float32Array:
    """Compute logits, float32 [n]; NaN for a row without a score.

    With T labels they are [n, T]. Such a row cannot be read, or one of its logits is not finite. `owner`,
    int64 [n], as of `SavedModel.logits`.
    """
    labels = len(model.job.data.label_names)
    shape = (len(rows.numbers), labels) if labels > 1 else (len(rows.numbers),)
    logits = np.full(shape, np.nan, np.float32)
    if len(rows.scored):
        batch = batch_to_score(rows.examples)
        scored = np.array(model.logits(batch, None if owner is None else owner[rows.scored]))
        scored[~has_scores(scored)] = np.nan
        logits[rows.scored] = scored
    return logits


def has_scores(logits: Float32Array) -> Mask:
    """Return which rows have finite logits, bool [n], from float32 [n] or [n, T]."""
    finite: Mask = np.isfinite(logits)
    return finite if finite.ndim == 1 else np.logical_and.reduce(finite, axis=1)


class _Scorer:
    """A scorer of chunks that counts finite and other logits."""

    def __init__(self, model: ScoringModel) -> None:
        self._model = model
        self._finite = self._not_finite = 0

    def logits_of(self, rows: InputRows) -> Float32Array:
        """Compute logits as the function `logits_of`."""
        logits = logits_of(self._model, rows)
        finite = int(has_scores(logits).sum())
        self._finite += finite
        self._not_finite += len(rows.scored) - finite
        return logits

    def check(self) -> None:
        """Raise CheckpointError if rows were scored, but no logit was finite.

        Call this after the last chunk.
        """
        if self._not_finite and not self._finite:
            raise CheckpointError(
                "no logit is finite: the model has diverged",
                where=str(self._model.folder),
                remedy="train again with a lower trainer.lr",
            )


def _rows_of(patterns: Sequence[str], schema: InputSchema, keep: Sequence[str]) -> Iterator[InputRows]:
    """Yield the rows of all files, each file once, by the order of patterns."""
    seen: set[str] = set()
    for pattern in patterns:
        spans = plan_spans([pattern], schema.data.format, schema.data.span_bytes, kafka=schema.data.kafka)
        for span in spans:
            if span.path not in seen:
                yield from read_input(span, schema, keep)
        seen |= {span.path for span in spans}


def _columns_of_labels(job: Job) -> list[tuple[str, ...]]:
    """Return the names of each label's columns in the output."""
    names = job.data.label_names
    columns = _LABEL_COLUMNS if job.model.has_logits else _OWN_LABEL_COLUMNS
    if len(names) == 1:
        return [columns]
    return [tuple(f"{column}_{name}" for column in columns) for name in names]


def _table(job: Job, logits: Float32Array, rows: InputRows, schema: pa.Schema | None) -> pa.Table:
    scores: dict[str, pa.Array] = {}
    by_label = logits.T if logits.ndim > 1 else logits[np.newaxis]
    for names, label_logits, labels in zip(_columns_of_labels(job), by_label, rows.labels, strict=True):
        has_logits = job.model.has_logits
        values = (*((probability_of(label_logits),) if has_logits else ()), label_logits, labels)
        scores |= dict(zip(names, (pa.array(score, from_pandas=True) for score in values), strict=True))
    columns = {
        "file": pa.array([rows.path], pa.string()).take(pa.array(np.zeros(len(rows.numbers), np.int64))),
        "row": pa.array(rows.numbers),
        **scores,
        **rows.kept,
    }
    with _kept_errors(rows):
        for column in rows.kept.values():
            # Texts that are not valid UTF-8 would make the output unreadable.
            column.validate(full=True)
        table = pa.table(columns)
        return table if schema is None else table.cast(schema)


@contextmanager
def _kept_errors(rows: InputRows) -> Iterator[None]:
    """Report Arrow's errors as DataError: they come from the kept columns."""
    try:
        yield
    except pa.ArrowException as error:
        raise DataError(
            f"a column cannot be kept ({error})", where=rows.path, remedy="drop it from --keep"
        ) from error


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
