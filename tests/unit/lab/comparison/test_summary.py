"""Rows of a comparison: means, pairs, and what a failed run does to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from shadowsync.lab.comparison.markdown import render_markdown
from shadowsync.lab.comparison.record import Comparison, Figures, LabelFigures, Run
from shadowsync.lab.comparison.statistics import paired_difference
from shadowsync.lab.comparison.summary import Quality, Row, summarize
from shadowsync.lab.comparison.variants import REFERENCE
from shadowsync.pipeline.report.document import Report, Throughput
from shadowsync.pipeline.report.quality import LabelQuality, Train

Compared = Callable[..., Comparison]


def _rows(comparison: Comparison) -> dict[str, Row]:
    return {row.label: row for row in summarize(comparison)}


def _change(run: Run, **figures: Any) -> None:
    assert run.figures is not None
    run.figures = run.figures.model_copy(update=figures)


def test_quality_is_paired_by_seed_against_one_trainer(compared: Compared) -> None:
    rows = _rows(
        compared({REFERENCE: [0.80, 0.70, 0.90], "none": [0.81, 0.712, 0.911], "easgd": [0.79, 0.9, 0.7]})
    )
    assert rows["none"].ne == pytest.approx((0.81 + 0.712 + 0.911) / 3)
    assert rows["none"].ne_difference == paired_difference([0.81, 0.712, 0.911], [0.80, 0.70, 0.90])
    assert rows["none"].ne_verdict == "worse"
    assert rows["easgd"].ne_verdict == "inconclusive", "the control: as far from it, but not in every pair"
    assert (rows[REFERENCE].ne_difference, rows[REFERENCE].ne_verdict) == (None, None)


def _with_label(comparison: Comparison, shift: dict[str, float]) -> None:
    """Give each run a second label, whose NE is that of the first plus `shift` of its variant."""
    for run in comparison.runs:
        if run.figures is None:
            continue
        ne = run.figures.ne
        assert ne is not None
        other = ne + shift[run.label] + run.seed / 1000
        figures = {"clicked": (ne, 0.7), "bought": (other, 0.6 + run.seed / 100)}
        labels = {
            name: LabelFigures(ne=ne, auc=auc, ne_progressive=None) for name, (ne, auc) in figures.items()
        }
        _change(run, labels=labels)


def test_each_of_several_labels_is_compared(compared: Compared) -> None:
    scores = {REFERENCE: [0.80, 0.70, 0.90], "none": [0.81, 0.712, 0.911], "easgd": [None, None, None]}
    comparison = compared(scores)
    before = _rows(comparison)
    assert before["none"].labels == {}
    _with_label(comparison, {REFERENCE: 0.0, "none": -0.05})
    rows = _rows(comparison)
    none = rows["none"]
    assert list(none.labels) == ["clicked", "bought"]
    assert none.labels["clicked"] == Quality(**{key: getattr(none, key) for key in Quality.model_fields})
    bought = none.labels["bought"]
    assert bought.ne == pytest.approx((0.81 + 0.712 + 0.911) / 3 - 0.05 + 0.005)
    assert bought.ne_difference is not None
    assert none.ne_difference is not None
    assert bought.ne_difference.mean == pytest.approx(none.ne_difference.mean - 0.05)
    assert (bought.ne_verdict, none.ne_verdict) == ("better", "worse")
    assert bought.auc == pytest.approx(0.65)
    assert rows[REFERENCE].labels["bought"].ne_difference is None
    assert rows["easgd"].labels == {}
    # The other columns are as they were.
    assert none.model_copy(update={"labels": {}}) == before["none"]
    text = render_markdown(comparison, list(rows.values()))
    assert f"| bought: NE | bought: NE minus {REFERENCE} | bought: by NE | bought: AUC |" in text
    assert "clicked: NE" not in text
    assert f"| {bought.ne:.4f} | " in text
    assert "bought" not in render_markdown(comparison, list(before.values()))


def test_figures_take_those_of_each_label(make_report: Callable[..., Report]) -> None:
    assert Figures.of(make_report(), 100).labels == {}
    quality: dict[str, Any] = {"auc": 0.6, "logloss": 0.1, "calibration": 1.0}
    labels = {"clicked": LabelQuality(ne=0.8, **quality), "bought": LabelQuality(ne=0.5, **quality)}
    evaluation = make_report().eval
    assert evaluation is not None
    report = make_report(
        eval=evaluation.model_copy(update={"labels": labels}),
        train=Train(ne_progressive=0.9, ne_by_label={"clicked": 0.9, "bought": 0.6}),
    )
    found = Figures.of(report, 100).labels
    assert found["bought"] == LabelFigures(ne=0.5, auc=0.6, ne_progressive=0.6)
    assert list(found) == ["clicked", "bought"]


def test_figures_are_those_of_the_best_checkpoint(make_report: Callable[..., Report]) -> None:
    last = make_report(0.9).eval
    assert last is not None
    quality = {"clicked": LabelQuality(ne=0.7, auc=0.8, logloss=0.3, calibration=1.0)}
    best = last.model_copy(update={"ne": 0.7, "auc": 0.8, "model": "the best", "labels": quality})
    train = Train(ne_progressive=0.9, ne_by_label={"clicked": 0.9})
    report = make_report(eval=best, eval_last=last, train=train)
    found = Figures.of(report, 100)
    assert (found.ne, found.auc, found.model) == (0.7, 0.8, "the best")
    assert found.labels["clicked"].ne == 0.7
    # The control: without a best one they are the last one's.
    assert Figures.of(make_report(0.9), 100).ne == 0.9


def test_a_failed_run_takes_its_pair_with_it(compared: Compared) -> None:
    rows = _rows(
        compared({REFERENCE: [0.8, None, 0.9], "none": [0.7, 0.6, 0.8], "easgd": [None, None, None]})
    )
    assert rows["none"].ne == pytest.approx(0.7)
    assert rows["none"].ne_difference == paired_difference([0.7, 0.8], [0.8, 0.9])
    assert (rows["none"].finished, rows["none"].failed) == (3, [])
    easgd = rows["easgd"]
    assert (easgd.ne, easgd.ne_difference, easgd.ne_verdict, easgd.finished) == (None, None, None, 0)
    assert easgd.failed[0] == "seed 4: exit code 3, no <file> | there"


def test_speed_is_compared_with_none(compared: Compared) -> None:
    comparison = compared({REFERENCE: [0.8, 0.8], "none": [0.8, 0.8], "easgd": [0.8, 0.8]})
    for run in comparison.runs:
        speed = {REFERENCE: 500.0, "none": 1000.0, "easgd": 900.0}[run.label] * run.seed
        _change(run, examples_per_second=speed)
    rows = _rows(comparison)
    assert rows["easgd"].speed_ratio is not None
    assert rows["easgd"].speed_ratio.mean == pytest.approx(0.9)
    assert rows["none"].speed_ratio is rows[REFERENCE].speed_ratio is None
    assert rows["easgd"].examples_per_second == 900.0 * 4.5
    without = _rows(compared({REFERENCE: [0.8], "easgd": [0.8]}))
    assert without["easgd"].speed_ratio is None


def test_what_one_run_did_not_measure_has_no_mean(compared: Compared) -> None:
    comparison = compared({REFERENCE: [0.8, 0.8], "easgd": [0.8, 0.8]})
    assert _rows(comparison)["easgd"].divergence == 0.02
    _change(comparison.of("easgd")[0], divergence=None, gap_max=70.0)
    row = _rows(comparison)["easgd"]
    assert (row.divergence, row.gap_max) == (None, 70.0)


def test_one_ledger_that_does_not_add_up_is_the_cells(compared: Compared) -> None:
    comparison = compared({REFERENCE: [0.8, 0.8], "easgd": [0.8, 0.8]})
    assert all(row.ledger_adds_up for row in _rows(comparison).values())
    _change(comparison.of("easgd")[1], ledger_adds_up=False)
    assert [label for label, row in _rows(comparison).items() if not row.ledger_adds_up] == ["easgd"]


def test_steps_are_batches(compared: Compared) -> None:
    comparison = compared(
        {REFERENCE: [0.8], "easgd": [0.8]},
        throughput=Throughput(examples_per_second=500.0, per_trainer={}, cpu_seconds_per_million=None),
    )
    figures = comparison.of("easgd")[0].figures
    assert figures is not None
    assert figures.steps_per_second == 5.0
