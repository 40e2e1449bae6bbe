"""Sums with sample weights, against scikit-learn's `sample_weight`."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.metrics.quality import QualitySums

Float32Array = NDArray[np.float32]
COUNT = 20_000


def _drawn() -> tuple[Float32Array, Float32Array, Float32Array]:
    """Weights that go with the label and with the logit's error, so that they matter to every figure."""
    generator = np.random.default_rng(5)
    logits = generator.normal(-1.2, 1.1, COUNT)
    labels = generator.random(COUNT) < 1.0 / (1.0 + np.exp(-logits))
    weights = generator.exponential(1.0, COUNT) * np.where(labels, 3.0, 1.0) * np.where(logits > 0, 0.2, 1.0)
    return logits.astype(np.float32), labels.astype(np.float32), weights.astype(np.float32)


def _sums(
    logits: Float32Array, labels: Float32Array, weights: Float32Array | None, parts: int = 1
) -> QualitySums:
    whole = QualitySums()
    for part in np.array_split(np.arange(len(logits)), parts):
        sums = QualitySums()
        sums.add(logits[part], labels[part], None if weights is None else weights[part])
        whole.merge(sums)
    return whole


def test_figures_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import log_loss, roc_auc_score

    logits, labels, weights = _drawn()
    sums = _sums(logits, labels, weights, parts=3)
    probability = 1.0 / (1.0 + np.exp(-logits.astype(np.float64)))
    rate = float(np.average(labels.astype(np.float64), weights=weights))
    loss = log_loss(labels, probability, sample_weight=weights)
    base = log_loss(labels, np.full(COUNT, rate), sample_weight=weights)
    auc = roc_auc_score(labels, logits, sample_weight=weights)
    assert sums.examples == COUNT
    assert sums.weight == pytest.approx(float(weights.astype(np.float64).sum()))
    assert sums.logloss == pytest.approx(loss, rel=1e-9)
    assert sums.ne == pytest.approx(loss / base, rel=1e-9)
    assert sums.auc == pytest.approx(auc, abs=1e-6)
    assert sums.calibration == pytest.approx(np.average(probability, weights=weights) / rate, rel=1e-9)
    # The control: without the weights these data have other figures.
    plain = _sums(logits, labels, None)
    assert plain.ne is not None
    assert plain.auc is not None
    assert abs(plain.logloss - loss) > 0.01
    assert abs(plain.auc - auc) > 0.005


def test_weights_of_one_are_no_weights() -> None:
    logits, labels, _ = _drawn()
    plain, ones = _sums(logits, labels, None), _sums(logits, labels, np.ones(COUNT, np.float32))
    assert (ones.ne, ones.auc, ones.calibration) == (plain.ne, plain.auc, plain.calibration)


def test_a_weight_of_two_is_the_example_twice() -> None:
    logits, labels, _ = _drawn()
    twice = _sums(np.repeat(logits[:100], 2), np.repeat(labels[:100], 2), None)
    heavy = _sums(logits[:100], labels[:100], np.full(100, 2.0, np.float32))
    assert (heavy.weight, twice.weight) == (200.0, 200.0)
    assert heavy.ne == pytest.approx(twice.ne, rel=1e-12)
    assert heavy.auc == pytest.approx(twice.auc, rel=1e-12)


def test_an_array_carries_weights_exactly() -> None:
    sums = _sums(*_drawn())
    copy = QualitySums.from_array(np.frombuffer(sums.to_array().tobytes(), np.float64))
    assert (copy.ne, copy.auc, copy.weight) == (sums.ne, sums.auc, sums.weight)
    changed = sums.to_array()
    changed[-1] += 1.0
    with pytest.raises(ValueError, match="do not add up"):
        QualitySums.from_array(changed)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_weights_that_are_none_are_refused(bad: float) -> None:
    sums = QualitySums()
    one = np.ones(2, np.float32)
    with pytest.raises(ValueError, match="weight"):
        sums.add(one, one, np.array([1.0, bad], np.float32))
    with pytest.raises(ValueError, match="weights"):
        sums.add(one, one, np.ones(3, np.float32))
    assert sums.examples == 0


def test_examples_without_any_weight_have_no_score() -> None:
    sums = QualitySums()
    sums.add(np.ones(2, np.float32), np.ones(2, np.float32), np.zeros(2, np.float32))
    with pytest.raises(DataError, match="weight 0"):
        _ = sums.ne


@pytest.mark.parametrize("seed", range(40))
def test_one_class_has_no_entropy_however_weights_are_rounded(seed: int) -> None:
    """The sum of all weights and that of the bins differ by rounding, either of them being larger."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0.0, 3.0, 200).astype(np.float32)
    weights = (generator.random(200) * 1000.0).astype(np.float32)
    for label in (0.0, 1.0):
        labels = np.full(200, label, np.float32)
        assert _sums(logits, labels, weights, parts=5).ne is None
    ranked = np.where(logits > np.median(logits), np.float32(1.0), np.float32(0.0))
    sums = _sums(logits, ranked, weights)
    assert sums.ne is not None, "the control"
    assert sums.auc is not None
    assert 0.999 < sums.auc <= 1.0
