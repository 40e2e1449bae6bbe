"""The report's figures by label, for jobs with several labels."""

from __future__ import annotations

from ..text.markdown import markdown_table, plain
from . import wording
from .model import Report
from .quality import LabelQuality


def tables_by_label(report: Report) -> list[str]:
    """Return tables of the quality by label, the headline first; empty for one label.

    That on the held-out files is of the model in the report's headline.
    """
    lines = []
    evaluation, part = report.headline, report.train.progressive
    if evaluation is not None and evaluation.labels:
        rows = [
            (name, *map(wording.number, (one.ne, one.auc, one.logloss, one.calibration)), *_ranking(one))
            for name, one in evaluation.labels.items()
        ]
        head = ("label", "NE", "AUC", "logloss", "calibration", "PR-AUC", "lift", "calibration error")
        lines += [plain(f"By label, of {evaluation.model}, held-out:"), "", *markdown_table(head, rows), ""]
    if part is not None and part.labels:
        scores = [
            (name, *map(wording.number, (one.ne, one.auc, one.logloss))) for name, one in part.labels.items()
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
        f"{name} NE {wording.number(one.ne)}, AUC {wording.number(one.auc)}"
        for name, one in evaluation.labels.items()
    )
    return f"By label: {'; '.join(each)}."


def _ranking(one: LabelQuality) -> tuple[str, ...]:
    figures = (one.pr_auc, one.lift, one.calibration_error)
    return tuple(map(wording.number, figures))
