"""The report's figures on the held-out files."""

from __future__ import annotations

from ...pipeline.data.generator.manifest import teacher_ne
from ...pipeline.data.prepared.manifest import source_files
from ...pipeline.metrics.quality import QualitySums, gain_ratio
from ...pipeline.metrics.ranking import calibration_curve, metrics_of, ranking_metrics
from ...pipeline.report.quality import CalibrationPart, Evaluation
from .state.outcome import Score


def held_out_quality(score: Score | None, eval_files: list[str]) -> Evaluation | None:
    """Return one model's sums, or the mean over replicas; None if nothing was scored."""
    found = [sums for sums in score.sums if sums.examples] if score is not None else []
    if score is None or not found:
        return None
    teacher = teacher_ne(source_files(eval_files))
    each = [metrics_of(sums, ranking_metrics(sums)) for sums in found]
    means = {name: _mean([metrics[name] for metrics in each]) for name in each[0]}
    others = {
        "model": score.model,
        "auc_error": _mean([sums.auc_error for sums in found]),
        "calibration_curve": _curve(found),
        "examples": found[0].examples,
        "teacher_ne": teacher,
        "gain_ratio": gain_ratio(means["ne"], teacher),
    }
    return Evaluation.model_validate(means | others)


def _curve(found: list[QualitySums]) -> list[CalibrationPart]:
    together = QualitySums()
    for sums in found:
        together.merge(sums)
    return [CalibrationPart(**part._asdict()) for part in calibration_curve(*together.histogram())]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
