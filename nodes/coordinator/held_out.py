"""The report's figures on the held-out files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...pipeline.config.job import Job
from ...pipeline.data.generator.manifest import teacher_ne
from ...pipeline.data.prepared.manifest import source_files
from ...pipeline.metrics.quality import QualitySums, gain_ratio
from ...pipeline.metrics.ranking import calibration_curve, metrics_of, ranking_metrics
from ...pipeline.metrics.retrieval import RetrievalQuality
from ...pipeline.metrics.top_k import GroupRanking
from ...pipeline.report.quality import (
    CalibrationPart,
    Evaluation,
    GroupQuality,
    LabelQuality,
    RetrievalFigures,
)
from ...pipeline.types import GROUP_METRICS
from .state.outcome import Score


def held_out_quality(score: Score | None, eval_files: list[str], job: Job) -> Evaluation | None:
    """Return one model's figures, or the mean over replicas; None if nothing was scored."""
    sums_of_models = [sums for sums in score.sums if sums.examples] if score is not None else []
    if score is None or not sums_of_models:
        return None
    labels = job.data.label_names
    teacher = teacher_ne(source_files(eval_files))
    of_logits = job.model.has_logits
    means = _means(sums_of_models, of_logits=of_logits)
    others = {
        "model": score.model,
        "examples": sums_of_models[0].examples,
        "bad_rows": score.bad_rows,
        "teacher_ne": teacher,
        "gain_ratio": gain_ratio(means["ne"], teacher),
        "labels": _by_label(sums_of_models, labels, of_logits=of_logits),
        "within_groups": _within_groups(score.rankings, job),
        "retrieval": _retrieval(score.retrieval, job),
        "own": dict(score.own_metrics),
    }
    return Evaluation.model_validate(means | others)


def _retrieval(quality: RetrievalQuality | None, job: Job) -> RetrievalFigures | None:
    if quality is None:
        return None
    settings = job.validation
    return RetrievalFigures(
        **asdict(quality),
        catalogue=settings.items,
        column=settings.group,
        without_trained=settings.exclude_trained,
    )


def _within_groups(rankings: Sequence[GroupRanking], job: Job) -> GroupQuality | None:
    """Return the mean figures over replicas; the counts are the same of each."""
    if not rankings:
        return None
    means = {name: _mean([getattr(ranking, name) for ranking in rankings]) for name in GROUP_METRICS}
    label = job.ranking_label.removeprefix("/")
    return GroupQuality(**asdict(rankings[0]) | means, column=job.validation.group, label=label)


def _by_label(
    sums_of_models: list[QualitySums], labels: Sequence[str], *, of_logits: bool
) -> dict[str, LabelQuality]:
    """Return the figures of each of several labels, the first one's too."""
    if not sums_of_models[0].others:
        return {}
    each = [sums.by_label(labels) for sums in sums_of_models]
    return {
        name: LabelQuality.model_validate(_means([by_label[name] for by_label in each], of_logits=of_logits))
        for name in labels
    }


def _means(sums_of_models: list[QualitySums], *, of_logits: bool) -> dict[str, Any]:
    each = [metrics_of(sums, ranking_metrics(sums), of_logits=of_logits) for sums in sums_of_models]
    return {
        **{name: _mean([metrics[name] for metrics in each]) for name in each[0]},
        "auc_error": _mean([sums.auc_error for sums in sums_of_models]),
        "calibration_curve": _curve(sums_of_models) if of_logits else [],
    }


def _curve(sums_of_models: list[QualitySums]) -> list[CalibrationPart]:
    together = QualitySums(sums_of_models[0].bins)
    for sums in sums_of_models:
        together.merge(sums)
    return [CalibrationPart(**part._asdict()) for part in calibration_curve(*together.histogram())]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
