"""Quality by label: a table and a line where there are several, and nothing where there is one."""

from __future__ import annotations

from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.report.quality import LabelQuality, Progressive, ProgressiveLabel
from shadowsync.pipeline.report.rendering.markdown import render_markdown
from shadowsync.pipeline.report.rendering.wording import quality

from ..conftest import altered, on_terminal

CLICKED = LabelQuality(ne=0.8123, auc=0.7654, logloss=0.4567, calibration=1.0123, pr_auc=0.5, lift=2.5)
BOUGHT = LabelQuality(ne=0.9135, auc=0.6987, logloss=0.1234, calibration=None, pr_auc=0.25, lift=None)


def with_labels(report: Report) -> Report:
    return altered(report, eval={"labels": {"clicked": CLICKED, "bought": BOUGHT}})


def test_each_label_has_a_row(full_report: Report) -> None:
    text = render_markdown(with_labels(full_report))
    assert "| clicked | 0.8123 | 0.7654 | 0.4567 | 1.0123 | 0.5000 | 2.5000 | not measured |" in text
    assert (
        "| bought | 0.9135 | 0.6987 | 0.1234 | not measured | 0.2500 | not measured | not measured |" in text
    )
    assert text.index("| clicked |") < text.index("| bought |")


def test_the_progressive_part_has_one_too(full_report: Report) -> None:
    label = ProgressiveLabel(ne=0.9, auc=0.6, auc_error=0.0, logloss=0.3)
    labels = {"clicked": label, "bought": label}
    counts = {"model": "the replicas", "examples": 100, "trained": 100, "labels": labels}
    part = Progressive.model_validate(label.model_dump() | counts)
    text = render_markdown(altered(full_report, train={"progressive": part}))
    assert "By label, progressive part:" in text
    assert "| bought | 0.9000 | 0.6000 | 0.3000 |" in text


def test_in_words(full_report: Report) -> None:
    report = with_labels(full_report)
    shown = on_terminal(report)
    assert "By label: clicked NE 0.8123, AUC 0.7654; bought NE 0.9135, AUC 0.6987." in shown
    assert "NE 0.8123 of clicked on 100,000 held-out examples" in quality(report)


def test_one_label_has_neither(full_report: Report) -> None:
    assert "By label" not in render_markdown(full_report)
    assert "By label" not in on_terminal(full_report)
    assert " of clicked" not in quality(full_report)
