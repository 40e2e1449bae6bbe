"""PR-AUC, lift and calibration of a histogram, against scikit-learn and against plain sorting."""

from __future__ import annotations

import numpy as np
import pytest
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.metrics.quality import QualitySums
from shadowsync.pipeline.metrics.ranking import CURVE_BINS, ranking_metrics
from shadowsync.pipeline.types import Float32Array

COUNT = 40_000
Drawn = tuple[Float32Array, Float32Array, Float32Array]


def _drawn(bias: float, seed: int = 1) -> Drawn:
    """Logits that are too sure of themselves, labels, and weights."""
    rng = np.random.default_rng(seed)
    true = rng.normal(bias, 1.5, COUNT)
    labels = (rng.random(COUNT) < 1 / (1 + np.exp(-true))).astype(np.float32)
    weights = rng.choice(np.array([0.0, 0.5, 1.0, 3.0]), COUNT).astype(np.float32)
    return (1.4 * true + rng.normal(0, 0.7, COUNT)).astype(np.float32), labels, weights


def _sums(drawn: Drawn, *, weighted: bool = False) -> QualitySums:
    sums = QualitySums()
    sums.add(drawn[0], drawn[1], drawn[2] if weighted else None)
    return sums


@pytest.mark.parametrize("bias", [0.0, -5.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_pr_auc_is_scikit_learns(bias: float, weighted: bool) -> None:
    from sklearn.metrics import average_precision_score

    logits, labels, weights = drawn = _drawn(bias)
    expected = average_precision_score(labels, logits, sample_weight=weights if weighted else None)
    found = ranking_metrics(_sums(drawn, weighted=weighted)).pr_auc
    assert found == pytest.approx(expected, abs=1e-4)
    if weighted:
        assert abs(average_precision_score(labels, logits) - expected) > 1e-4, "the control"


@pytest.mark.parametrize("bias", [0.0, -5.0])
def test_the_curve_is_scikit_learns(bias: float) -> None:
    from sklearn.calibration import calibration_curve

    logits, labels, _ = drawn = _drawn(bias)
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    rates, predicted = calibration_curve(labels, probabilities, n_bins=CURVE_BINS, strategy="quantile")
    found = ranking_metrics(_sums(drawn))
    assert [part.examples for part in found.curve] == pytest.approx([COUNT / CURVE_BINS] * CURVE_BINS)
    assert np.allclose([part.predicted for part in found.curve], predicted, rtol=2e-3)
    assert np.allclose([part.rate for part in found.curve], rates, rtol=5e-3, atol=1e-3)
    assert found.calibration_error == pytest.approx(float(np.abs(rates - predicted).mean()), abs=1e-4)
    calibrated = _sums(((logits / 1.7).astype(np.float32), labels, labels))
    if bias == 0.0:
        assert ranking_metrics(calibrated).calibration_error < found.calibration_error / 2


def test_the_lift_is_that_of_the_sorted_rows() -> None:
    logits, labels, weights = drawn = _drawn(-3.0)
    top = np.argsort(-logits)[: COUNT // 10]
    assert ranking_metrics(_sums(drawn)).lift == pytest.approx(labels[top].mean() / labels.mean(), rel=2e-3)
    order = np.argsort(-logits)
    inside = np.cumsum(weights[order]) <= 0.1 * weights.sum()
    clicks = (weights * labels)[order]
    weighted = ranking_metrics(_sums(drawn, weighted=True)).lift
    assert weighted == pytest.approx(clicks[inside].sum() / clicks.sum() / 0.1, rel=5e-3)


def test_equal_scores_have_no_lift_and_one_rate() -> None:
    labels = (np.arange(1000) % 4 == 0).astype(np.float32)
    found = ranking_metrics(_sums((np.full(1000, -1.0, np.float32), labels, labels)))
    assert found.lift == pytest.approx(1.0)
    assert found.pr_auc == pytest.approx(0.25)
    assert {round(part.rate, 9) for part in found.curve} == {0.25}
    assert found.calibration_error == pytest.approx(1 / (1 + np.e) - 0.25, abs=1e-4)


def test_with_one_label_only_calibration_is_known() -> None:
    zeros = np.zeros(10, np.float32)
    found = ranking_metrics(_sums((zeros, zeros, zeros)))
    assert (found.pr_auc, found.lift) == (None, None)
    assert found.calibration_error == pytest.approx(0.5, abs=1e-4)
    with pytest.raises(DataError, match="no examples"):
        ranking_metrics(QualitySums())
    with pytest.raises(DataError, match="weight 0"):
        ranking_metrics(_sums((zeros, zeros, zeros), weighted=True))
