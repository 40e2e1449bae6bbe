"""The report's figures on the held-out files."""

from __future__ import annotations

from ...pipeline.data.generator.manifest import teacher_ne
from ...pipeline.data.prepared.manifest import source_files
from ...pipeline.metrics.quality import QualitySums, gain_ratio
from ...pipeline.metrics.ranking import calibration_curve, ranking_metrics
from ...pipeline.report.quality import CalibrationPart, Evaluation
from .state.outcome import Score


def held_out_quality(score: Score | None, eval_files: list[str]) -> Evaluation | None:
    """Return one model's sums, or the mean over replicas; None if nothing was scored."""
    found = [sums for sums in score.sums if sums.examples] if score is not None else []
    if score is None or not found:
        return None
    teacher = teacher_ne(source_files(eval_files))
    ne = _mean([sums.ne for sums in found])
    rankings = [ranking_metrics(sums) for sums in found]
    return Evaluation(
        model=score.model,
        ne=ne,
        auc=_mean([sums.auc for sums in found]),
        auc_error=_mean([sums.auc_error for sums in found]),
        logloss=sum(sums.logloss for sums in found) / len(found),
        calibration=_mean([sums.calibration for sums in found]),
        pr_auc=_mean([ranking.pr_auc for ranking in rankings]),
        lift=_mean([ranking.lift for ranking in rankings]),
        calibration_error=_mean([ranking.calibration_error for ranking in rankings]),
        calibration_curve=_curve(found),
        examples=found[0].examples,
        teacher_ne=teacher,
        gain_ratio=gain_ratio(ne, teacher),
    )


def _curve(found: list[QualitySums]) -> list[CalibrationPart]:
    together = QualitySums()
    for sums in found:
        together.merge(sums)
    return [CalibrationPart(**part._asdict()) for part in calibration_curve(*together.histogram())]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
