"""The sums, against scikit-learn, against their own bound, and against a coarse control."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.metrics.quality import BINS, QualitySums, gain_ratio

Float32Array = NDArray[np.float32]


def _sums(logits: Any, labels: Any, bins: int = BINS) -> QualitySums:
    sums = QualitySums(bins)
    sums.add(np.asarray(logits, np.float32), np.asarray(labels, np.float32))
    return sums


def _drawn(logits: NDArray[np.float64], seed: int = 0) -> tuple[Float32Array, Float32Array]:
    """Logits as float32, and labels drawn from them after standardizing, so that the AUC is not trivial."""
    generator = np.random.default_rng(seed)
    standard = (logits - logits.mean()) / logits.std()
    labels = generator.random(len(logits)) < 1.0 / (1.0 + np.exp(1.0 - np.clip(standard, -30, 30)))
    return logits.astype(np.float32), labels.astype(np.float32)


def _click_logits(count: int = 200_000) -> NDArray[np.float64]:
    return np.random.default_rng(1).normal(-1.2, 1.1, count)


def test_auc_of_typical_logits_is_that_of_scikit_learn() -> None:
    """Within 1e-6; the control, of 64 bins instead of 65,536, is not within 1e-4."""
    from sklearn.metrics import roc_auc_score

    logits, labels = _drawn(_click_logits())
    true = roc_auc_score(labels, logits)
    fine, coarse = _sums(logits, labels), _sums(logits, labels, bins=64)
    assert fine.auc is not None
    assert coarse.auc is not None
    assert abs(coarse.auc - true) > 1e-4 > 100 * abs(fine.auc - true)
    assert coarse.auc_error is not None
    assert fine.auc_error is not None
    assert coarse.auc_error > 100 * fine.auc_error


_GENERATOR = np.random.default_rng(2)
ADVERSARIAL = {
    "narrow": _GENERATOR.normal(-3.0, 0.03, 100_000),
    "heavy tails": _GENERATOR.standard_cauchy(100_000) * 5.0,
    "saturated": np.where(_GENERATOR.random(100_000) < 0.5, -60.0, 40.0) + _GENERATOR.normal(0, 3, 100_000),
    "rare positives": _GENERATOR.normal(-9.0, 2.0, 100_000),
    "discrete": np.round(_GENERATOR.normal(-1.0, 1.0, 100_000), 1),
    "magnitudes": _GENERATOR.choice([-1, 1], 100_000) * 10.0 ** _GENERATOR.uniform(-3, 4, 100_000),
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_auc_of_adversarial_logits(name: str) -> None:
    from sklearn.metrics import roc_auc_score

    logits, labels = _drawn(ADVERSARIAL[name], seed=3)
    sums = _sums(logits, labels)
    assert sums.auc is not None
    assert sums.auc_error is not None
    off = abs(sums.auc - roc_auc_score(labels, logits))
    assert off <= min(1e-4, sums.auc_error + 1e-12)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.floats(width=32, allow_nan=False, allow_infinity=False), st.booleans()), min_size=2)
)
def test_the_error_stays_within_its_bound_for_any_logits(examples: list[tuple[float, bool]]) -> None:
    from sklearn.metrics import roc_auc_score

    logits = np.array([logit for logit, _ in examples], np.float32)
    labels = np.array([label for _, label in examples], np.float32)
    sums = _sums(logits, labels)
    if labels.min() == labels.max():
        assert sums.auc is None
        return
    assert sums.auc is not None
    assert sums.auc_error is not None
    # Ranks, not logits: scikit-learn merges logits closer than float64 can tell after its own arithmetic.
    ranks = np.unique(logits, return_inverse=True)[1]
    assert abs(sums.auc - roc_auc_score(labels, ranks)) <= sums.auc_error + 1e-12


def test_too_narrow_logits_are_admitted() -> None:
    """Where the histogram cannot tell, the bound says so, and auc is a coin."""
    sums = _sums(np.full(1000, -1.0) + np.arange(1000) * 1e-8, np.arange(1000) % 3 == 0)
    assert sums.auc_error == pytest.approx(0.5)
    assert sums.auc == pytest.approx(0.5)


def test_logloss_ne_and_calibration_are_those_of_their_formulas() -> None:
    from sklearn.metrics import log_loss

    logits, labels = _drawn(_click_logits(20_000))
    probability = 1.0 / (1.0 + np.exp(-logits.astype(np.float64)))
    rate = float(labels.astype(np.float64).mean())
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    sums = _sums(logits, labels)
    loss = log_loss(labels, probability)
    assert (sums.examples, sums.positives) == (20_000, int(labels.sum()))
    assert sums.logloss == pytest.approx(loss, rel=1e-12)
    assert sums.ne == pytest.approx(loss / entropy, rel=1e-12)
    assert sums.calibration == pytest.approx(probability.mean() / rate, rel=1e-12)


def test_the_mean_label_as_prediction_has_ne_and_calibration_one() -> None:
    labels = np.arange(400) % 4 == 0
    sums = _sums(np.full(400, math.log(0.25 / 0.75)), labels)
    assert sums.ne == pytest.approx(1.0, abs=1e-7)
    assert sums.calibration == pytest.approx(1.0, abs=1e-7)
    assert sums.auc == 0.5


def test_extreme_logits_neither_overflow_nor_lose_their_loss() -> None:
    largest = float(np.finfo(np.float32).max)
    sums = _sums([largest, -largest, 1000.0, -1000.0], [1.0, 0.0, 0.0, 1.0])
    assert sums.logloss == pytest.approx(500.0)
    assert sums.auc == pytest.approx(0.75)


def test_merged_parts_are_the_whole() -> None:
    logits, labels = _drawn(_click_logits(10_000))
    whole, merged = _sums(logits, labels), QualitySums()
    for part in np.array_split(np.arange(10_000), 7):
        merged.merge(_sums(logits[part], labels[part]))
    assert (merged.auc, merged.auc_error) == (whole.auc, whole.auc_error)
    assert (merged.examples, merged.positives) == (whole.examples, whole.positives)
    assert merged.logloss == pytest.approx(whole.logloss, rel=1e-12)
    assert merged.calibration == pytest.approx(whole.calibration, rel=1e-12)


def test_a_merge_leaves_the_other_alone() -> None:
    first, other = _sums([1.0], [1.0]), _sums([2.0], [0.0])
    first.merge(other)
    other.merge(other)
    assert (first.examples, first.positives, other.examples) == (2, 1, 2)


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.floats(width=32, allow_nan=False, allow_infinity=False),
            st.booleans(),
            st.floats(0.0, float(np.float32(1e30)), width=32),
        ),
        min_size=1,
    ),
    st.booleans(),
)
def test_sums_of_any_logits_travel(examples: list[tuple[float, bool, float]], weighted: bool) -> None:
    logits, labels, weights = (np.array([one[at] for one in examples], np.float32) for at in range(3))
    sums = QualitySums()
    sums.add(logits, labels, weights if weighted else None)
    sums.merge(sums)
    assert QualitySums.from_bytes(sums.to_bytes()).examples == 2 * len(examples)


@pytest.mark.parametrize("place", [2, 3], ids=["loss", "probability"])
@pytest.mark.parametrize("factor", [0.0, 0.9, 1.1, 1e50, 1e300])
def test_sums_that_their_bins_cannot_have_are_refused(place: int, factor: float) -> None:
    array = _sums(*_drawn(_click_logits(1_000))).to_array()
    QualitySums.from_array(array)
    array[place] *= factor
    with pytest.raises(ValueError, match="sum"):
        QualitySums.from_array(array)


def test_weights_whose_sum_would_overflow_are_refused() -> None:
    sums = QualitySums()
    sums.add(np.zeros(1, np.float32), np.ones(1, np.float32), np.ones(1, np.float32))
    array = sums.to_array()
    array[[2, 3, 5, 9]] *= 1e305
    with pytest.raises(ValueError, match="too large"):
        QualitySums.from_array(array)


def test_no_examples_also_travel() -> None:
    assert QualitySums.from_array(QualitySums().to_array()).examples == 0


def _changed(place: int, value: float) -> NDArray[np.float64]:
    array = _sums([0.5, -1.0, 2.0], [1.0, 0.0, 1.0]).to_array()
    array[place] = value
    return array


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3),
        np.zeros((5, 1)),
        np.zeros(5, np.float32),
        _changed(0, 64.0),
        _changed(1, 4.0),
        _changed(2, math.nan),
        _changed(3, -1.0),
        _changed(4, 2.0),
        _changed(5, 4.0),
        _changed(7, 65_536.0),
        _changed(8, 0.0),
        _changed(9, 0.5),
        _changed(10, 3.0),
        _sums([0.5], [1.0]).to_array()[:-1],
    ],
)
def test_an_array_that_is_none_is_refused(array: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match=r"sums|bins"):
        QualitySums.from_array(array)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_no_number_is_refused_and_nothing_is_added(bad: float) -> None:
    sums = _sums([1.0], [1.0])
    before = sums.to_array()
    with pytest.raises(ValueError, match=r"logit 1 of 3 .* diverged"):
        sums.add(np.array([0.0, bad, 0.0], np.float32), np.zeros(3, np.float32))
    assert np.array_equal(sums.to_array(), before)


@pytest.mark.parametrize("label", [0.5, 2.0, -1.0, math.nan])
def test_a_label_that_is_none_is_refused(label: float) -> None:
    with pytest.raises(ValueError, match="neither 0 nor 1"):
        _sums([0.0, 0.0], [1.0, label])


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="must both be"):
        _sums([0.0, 1.0], [1.0])
    with pytest.raises(ValueError, match="must both be"):
        _sums([[[0.0]]], [[[1.0]]])


@pytest.mark.parametrize("name", ["logloss", "ne", "auc", "auc_error", "calibration"])
def test_zero_examples_are_an_error(name: str) -> None:
    with pytest.raises(DataError, match="no examples"):
        getattr(QualitySums(), name)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_has_a_logloss_but_no_ne_and_no_auc(label: float) -> None:
    sums = _sums([0.0, 0.0], [label, label])
    assert sums.logloss == pytest.approx(math.log(2.0))
    assert (sums.ne, sums.auc, sums.auc_error) == (None, None, None)
    assert sums.calibration == (pytest.approx(0.5) if label else None)


def test_other_bins_do_not_merge() -> None:
    with pytest.raises(ValueError, match="64 bins"):
        QualitySums().merge(QualitySums(64))
    with pytest.raises(ValueError, match="at least 2"):
        QualitySums(1)


def test_gain_ratio() -> None:
    assert gain_ratio(0.85, 0.8) == pytest.approx(0.75)
    assert gain_ratio(1.1, 0.8) == pytest.approx(-0.5)
    assert gain_ratio(None, 0.8) is None
    assert gain_ratio(0.9, None) is None
    assert gain_ratio(0.9, 1.0) is None
