"""Permutation importance of columns: how much worse a model is when one column's values are exchanged.

Source: Breiman, Random Forests (Machine Learning 45, 2001), section 10.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from ..config.towers import has_made_label
from ..data.batches.span_plan import plan_spans
from ..data.columns.fields import decoded
from ..data.span import Span
from ..errors import DataError
from ..metrics.importance import ColumnImportance, Importance
from ..metrics.quality import QualitySums
from ..types import Float32Array
from .input_rows import InputSchema, as_trained, input_schema, read_input, rows_of_columns
from .prediction import ScoringModel, has_scores, label_number, logits_of

_SPANS: Final = 16
_CHUNK_ROWS: Final = 8_192


@dataclass(frozen=True)
class _Sample:
    """Rows with a label and a score: the columns of files by name, and float32 [n] labels."""

    columns: Mapping[str, pa.Array]
    labels: Float32Array


@dataclass
class _Column:
    """What was measured of a column so far: differences from the sample as it is."""

    ne: list[float | None] = field(default_factory=list)
    auc: list[float] = field(default_factory=list)


def permutation_importance(
    model: ScoringModel,
    patterns: Sequence[str],
    *,
    label: str = "",
    rows: int = 20_000,
    repeats: int = 3,
    seconds: float = 60.0,
    seed: int = 0,
    now: Callable[[], float] = time.monotonic,
) -> Importance:
    """Measure how much each column of the files matters to a model.

    A column's values are exchanged between the rows of a sample, and the sample is scored again. What is
    computed from the column (crosses, buckets) follows. Columns that say the same as others matter little
    each, though they may matter together. Sample weights are not used.

    Args:
        patterns: files, globs or URLs in the job's format, with labels.
        label: one of several labels, by default the first.
        rows: rows of the sample, drawn from at most 16 parts of the files.
        repeats: how often each column is exchanged; the figures are means.
        seconds: no exchange begins after this time. Each column is exchanged once before one is again; those
            that it leaves out are in `Importance.left_out`.

    Raises DataError for a label that the model does not have, for files without rows that have a label and a
    score, for labels that are all the same, and as `score_files`.
    """
    began = now()
    number = label_number(model, label)
    schema, rng = input_schema(model.job, model.id_classes), np.random.default_rng(seed)
    sample = _sample(model, patterns, schema, number, rows, rng)
    ne, auc = _scores(model, sample.columns, sample.labels, schema, number)
    measured: dict[str, _Column] = {}
    for column, sources in _turns(schema, repeats):
        if now() - began > seconds:
            break
        exchanged = _exchanged(sample.columns, sources, rng)
        other_ne, other_auc = _scores(model, exchanged, sample.labels, schema, number)
        of_column = measured.setdefault(column, _Column())
        of_column.ne.append(None if ne is None or other_ne is None else other_ne - ne)
        of_column.auc.append(auc - other_auc)
    columns = [_mean(name, column) for name, column in measured.items()]
    return Importance(
        rows=len(sample.labels),
        label=model.job.data.label_names[number],
        ne=ne,
        auc=auc,
        columns=sorted(columns, key=_by_importance),
        left_out=[name for name in _units(schema) if name not in measured],
    )


def _units(schema: InputSchema) -> dict[str, list[str]]:
    """Return the columns of files that are exchanged together, by the name of the first.

    The weights of a list belong to its ids.
    """
    columns = schema.read.data.columns.items()
    weights = {column.source or name: column.weights for name, column in columns if column.weights}
    apart = [source for source in schema.read.sources if source not in weights.values()]
    return {source: [source, *filter(None, [weights.get(source)])] for source in apart}


def _turns(schema: InputSchema, repeats: int) -> Iterator[tuple[str, list[str]]]:
    for _ in range(repeats):
        yield from _units(schema).items()


def _exchanged(
    columns: Mapping[str, pa.Array], sources: Sequence[str], rng: np.random.Generator
) -> dict[str, pa.Array]:
    order = pa.array(rng.permutation(len(columns[sources[0]])))
    return {**columns, **{source: columns[source].take(order) for source in sources}}


def _sample(
    model: ScoringModel,
    patterns: Sequence[str],
    schema: InputSchema,
    label: int,
    rows: int,
    rng: np.random.Generator,
) -> _Sample:
    data = schema.data
    spans = plan_spans(patterns, data.format, data.span_bytes, kafka=data.kafka)
    chosen = [spans[place] for place in rng.permutation(len(spans))[:_SPANS]]
    parts: list[pa.Table] = []
    labels: list[Float32Array] = []
    count = 0
    for place, span in enumerate(chosen):
        # Equal parts of what is left.
        most = -(-(rows - count) // (len(chosen) - place))
        for table, of_rows in _labelled(model, span, schema, label):
            parts.append(table[:most])
            labels.append(of_rows[:most])
            count, most = count + len(labels[-1]), most - len(labels[-1])
            if most <= 0:
                break
    if not count:
        raise DataError(
            "no row has a label and a score", where=", ".join(patterns), remedy="give files with labels"
        )
    try:
        table = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
    except pa.ArrowException as error:
        raise DataError(
            f"have a column of several types, which cannot be exchanged between rows ({error})",
            where=", ".join(patterns),
            remedy="give files whose columns have the same types",
        ) from error
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    return _Sample(columns, np.concatenate(labels))


def _labelled(
    model: ScoringModel, span: Span, schema: InputSchema, label: int
) -> Iterator[tuple[pa.Table, Float32Array]]:
    """Yield the rows of a span with a label and a score, chunk by chunk, and their labels."""
    for rows in read_input(span, schema, schema.read.sources):
        usable = has_scores(logits_of(model, rows)) & np.isfinite(rows.labels[label])
        if usable.any():
            # Another file may have integers where this one has texts or categories, if training read texts.
            columns = {
                name: decoded(as_trained(column, name, schema, rows.path))
                for name, column in rows.kept.items()
            }
            yield pa.table(columns).filter(pa.array(usable)), rows.labels[label][usable]


def _scores(
    model: ScoringModel,
    columns: Mapping[str, pa.Array],
    labels: Float32Array,
    schema: InputSchema,
    label: int,
) -> tuple[float | None, float]:
    """Return NE and AUC of the sample with these columns; no NE of scores that are no probabilities."""
    sums = QualitySums()
    for begin in range(0, len(labels), _CHUNK_ROWS):
        some = slice(begin, begin + _CHUNK_ROWS)
        numbers = np.arange(begin, min(begin + _CHUNK_ROWS, len(labels)))
        chunk = {name: values[some] for name, values in columns.items()}
        logits = logits_of(model, rows_of_columns(chunk, schema, [], "the sample", numbers))
        sums.add(logits if logits.ndim == 1 else logits[:, label].copy(), labels[some])
    if sums.ne is None or sums.auc is None:
        raise DataError(
            f"all {len(labels):,} labels of the sample are the same",
            where="--data",
            remedy="there is no importance without rows of label 0, which this job cannot have"
            if has_made_label(model.job.model, model.job.data.columns)
            else "give files with both labels, or more --rows",
        )
    return (sums.ne if model.job.model.has_logits else None), sums.auc


def _mean(name: str, column: _Column) -> ColumnImportance:
    of_ne = [increase for increase in column.ne if increase is not None]
    return ColumnImportance(
        name=name,
        ne_increase=statistics.fmean(of_ne) if of_ne else None,
        ne_deviation=statistics.stdev(of_ne) if len(of_ne) > 1 else None,
        auc_decrease=statistics.fmean(column.auc),
        repeats=len(column.auc),
    )


def _by_importance(column: ColumnImportance) -> tuple[float, str]:
    figure = column.auc_decrease if column.ne_increase is None else column.ne_increase
    return -figure, column.name
