"""Evaluation of a saved model on files, without a cluster."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..data.bad_rows import BadRows
from ..data.batch import Batch, label_columns
from ..data.generator.manifest import teacher_ne
from ..data.prepared.manifest import source_files
from ..data.span import Span
from ..errors import DataError
from ..input.job_input import JobInput
from ..metrics.pass_sums import PassSums
from ..metrics.quality import QualitySums, gain_ratio
from ..metrics.ranking import metrics_of, ranking_metrics
from ..metrics.top_k import KEPT_BYTES, GroupRanking
from ..types import NEED_PROBABILITIES
from .model import SavedModel
from .untrained_ids import UntrainedIds

T = TypeVar("T")

SCORE_BATCH = 4096


@dataclass(frozen=True)
class SpanScores:
    """Scores of some spans.

    Attributes:
        sums: sums for the metrics.
        bad_rows: number of malformed rows, which were skipped.
        first_bad_row: the first of them, in words; "" without any.
        ranking: the figures within groups; None for a job without.
        own: the results of `validation.own`, by name.
    """

    sums: QualitySums
    bad_rows: int
    first_bad_row: str = ""
    ranking: GroupRanking | None = None
    own: dict[str, float | None] = field(default_factory=dict)


def evaluate_model(model: SavedModel, patterns: list[str]) -> dict[str, Any]:
    """Compute the quality of a saved model on files.

    The files must have the job's format. The figures are NE, AUC, logloss, calibration and `RankingMetrics`,
    and for generated logs the teacher's NE. Of several labels they are those of the first, and `labels` has
    those of each label by name. Of a job with `validation.group`, `groups` has those of `GroupRanking`, and
    with `validation.own`, `own` has its results. With
    `model.scores = "own"` those of NEED_PROBABILITIES are missing. `untrained_ids` has the counts of
    `UntrainedIds.as_dict`. Raises DataError for files that cannot be used.
    """
    spans = spans_of(model, patterns)
    ids = UntrainedIds(model.tables)
    scores = score_spans(model, spans, ids)
    sums = scores.sums
    if not sums.examples:
        raise DataError(
            "no example could be read",
            where=", ".join(patterns),
            remedy="give files with rows that fit the job's [data]",
        )
    of_logits = model.job.model.has_logits
    teacher = teacher_ne(source_files(sorted({span.path for span in spans})))
    # Only generated logs have a teacher.
    taught = (
        {}
        if teacher is None or not of_logits
        else {"teacher_ne": teacher, "gain_ratio": gain_ratio(sums.ne, teacher)}
    )
    return {
        "model": model.description,
        "examples": sums.examples,
        "bad_rows": scores.bad_rows,
        **_figures(sums, of_logits=of_logits),
        **({"own": scores.own} if scores.own else {}),
        **({} if scores.ranking is None else {"groups": _of_groups(model, scores.ranking)}),
        "untrained_ids": ids.as_dict(),
        **taught,
        **({"labels": _by_label(sums, model.labels, of_logits=of_logits)} if sums.others else {}),
    }


def _of_groups(model: SavedModel, ranking: GroupRanking) -> dict[str, Any]:
    settings = model.job.ranking
    label = {"label": model.labels[settings.label]} if settings is not None and model.labels[1:] else {}
    return {"column": model.job.validation.group, **label, **ranking.as_dict()}


def _by_label(sums: QualitySums, labels: Sequence[str], *, of_logits: bool) -> dict[str, Any]:
    by_label = sums.by_label(labels).items()
    return {name: _figures(of_label, of_logits=of_logits) for name, of_label in by_label}


def _figures(sums: QualitySums, *, of_logits: bool) -> dict[str, Any]:
    """Return the metrics and the curve; without logits, those that need probabilities are left out."""
    ranking = ranking_metrics(sums)
    figures = {**metrics_of(sums, ranking), "calibration_curve": [part._asdict() for part in ranking.curve]}
    left_out = () if of_logits else (*NEED_PROBABILITIES, "calibration_curve")
    return {name: value for name, value in figures.items() if name not in left_out}


def spans_of(model: SavedModel, patterns: list[str]) -> list[Span]:
    """Plan the spans of all files that match the patterns.

    Files have the format of the model's job, or are parts of the prepared folder that it was trained on.
    Raises DataError for files that cannot be used, such as those with texts where training read integers.
    """
    source = JobInput(model.job, has_begun=True)
    source.ids.add_known(model.id_classes, str(model.folder))
    return source.plan_raw(patterns, scored=True)


def score_spans(model: SavedModel, spans: Iterable[Span], ids: UntrainedIds | None = None) -> SpanScores:
    """Score every example of the spans in order, on this thread; arguments as `score_in_pieces`."""
    return result_of(score_in_pieces(model, spans, ids))


def result_of(work: Generator[None, None, T]) -> T:
    """Do all pieces of some work on this thread; return its result."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        result: T = end.value
        return result


def score_in_pieces(
    model: SavedModel, spans: Iterable[Span], ids: UntrainedIds | None = None
) -> Generator[None, None, SpanScores]:
    """Score every example of the spans in order, and yield after each batch.

    Returns the scores, and counts ids in `ids` if given. Raises DataError for files that cannot be read and
    for examples that cannot be scored.
    """
    bad_rows = BadRows(model.job.data.max_bad_rows)
    sums, spans = PassSums.of(model.job.ranking, KEPT_BYTES), list(spans)
    own_metrics = model.own_metrics()
    paths = {span.number: span.path for span in spans}
    for batch in batches_of(model, spans, bad_rows):
        weights = batch.weights if len(batch.weights) else None
        try:
            labels = label_columns(batch.labels, batch.other_labels)
            scores = model.logits(batch)
            sums.add(scores, labels, weights, batch.groups)
        except ValueError as error:
            raise DataError(
                f"batch {batch.id.number} of span {batch.id.span} cannot be scored: {error}",
                where=paths.get(batch.id.span, ""),
                remedy="use an earlier checkpoint, or fix what the model computes for these rows",
            ) from error
        own_metrics.add(scores, labels, weights, batch.groups)
        if ids is not None:
            ids.add(model.ids_without_row(batch))
        yield
    first = str(bad_rows.first[0]) if bad_rows.first else ""
    return SpanScores(sums.quality, bad_rows.count, first, sums.ranking, own_metrics.results())


def batches_of(model: SavedModel, spans: Iterable[Span], bad_rows: BadRows) -> Iterator[Batch]:
    """Yield the examples of the spans in order, in batches of SCORE_BATCH.

    Raises DataError for files that cannot be read.
    """
    job = model.job
    source = JobInput(job)
    for span in spans:
        yield from source.batches(
            span,
            epoch=0,
            seed=job.run.seed,
            batch=SCORE_BATCH,
            shuffle_window=0,
            bad_rows=bad_rows,
        )
