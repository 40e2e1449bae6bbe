"""The report's figures by label, for jobs with several labels."""

from __future__ import annotations

from ...text.markdown import markdown_table, plain
from ..document import Report
from ..quality import LabelQuality
from . import wording


def tables_by_label(report: Report) -> list[str]:
    """Return tables of the quality by label, the headline first; empty for one label.

    That on the held-out files is of the model in the report's headline.
    """
    lines = []
    evaluation, part = report.headline, report.train.progressive
    if evaluation is not None and evaluation.labels:
        rows = [
            (
                name,
                *map(wording.number, (quality.ne, quality.auc, quality.logloss, quality.calibration)),
                *_ranking(quality),
            )
            for name, quality in evaluation.labels.items()
        ]
        head = ("label", "NE", "AUC", "logloss", "calibration", "PR-AUC", "lift", "calibration error")
        lines += [plain(f"By label, of {evaluation.model}, held-out:"), "", *markdown_table(head, rows), ""]
    if part is not None and part.labels:
        scores = [
            (name, *map(wording.number, (quality.ne, quality.auc, quality.logloss)))
            for name, quality in part.labels.items()
        ]
        lines += ["By label, progressive part:", ""]
        lines += [*markdown_table(("label", "NE", "AUC", "logloss"), scores), ""]
    return lines


def labels_in_words(report: Report) -> str:
    """Describe each label on the held-out files; "" for one label."""
    evaluation = report.headline
    if evaluation is None or not evaluation.labels:
        return ""
    each = (
        f"{name} NE {wording.number(quality.ne)}, AUC {wording.number(quality.auc)}"
        for name, quality in evaluation.labels.items()
    )
    return f"By label: {'; '.join(each)}."


def _ranking(quality: LabelQuality) -> tuple[str, ...]:
    figures = (quality.pr_auc, quality.lift, quality.calibration_error)
    return tuple(map(wording.number, figures))
