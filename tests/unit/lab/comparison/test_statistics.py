"""Paired intervals against closed forms, and what is said of them."""

from __future__ import annotations

import math

import pytest
from shadowsync.lab.comparison.statistics import Paired, paired_difference, paired_ratio

# Student's t at 95% in closed form, for 2 degrees of freedom; that for 1 is tan(0.95 pi / 2).
T_OF_TWO = 0.95 * math.sqrt(2 / (1 - 0.95**2))


def test_a_difference_is_paired() -> None:
    """What a pair shares cancels out, however large it is."""
    seeds = [10.0, -40.0, 300.0]
    found = paired_difference([seed + 1.0 for seed in seeds], seeds)
    assert found == Paired(mean=1.0, low=1.0, high=1.0, pairs=3)
    unpaired = paired_difference([seeds[1] + 1.0, seeds[2] + 1.0, seeds[0] + 1.0], seeds)
    assert unpaired.high is not None
    assert unpaired.high - unpaired.mean > 300.0, "the control: the same values, in other pairs"


def test_the_interval_of_a_difference() -> None:
    found = paired_difference([1.0, 2.0, 6.0], [0.0, 0.0, 0.0])
    # mean 3, standard deviation sqrt(7), t of 2 degrees of freedom.
    half = T_OF_TWO * math.sqrt(7.0 / 3.0)
    assert (found.mean, found.pairs) == (3.0, 3)
    assert found.low == pytest.approx(3.0 - half)
    assert found.high == pytest.approx(3.0 + half)


def test_a_ratio_is_a_geometric_mean() -> None:
    found = paired_ratio([2.0, 8.0], [1.0, 1.0])
    assert found.mean == pytest.approx(4.0)
    half = math.tan(0.95 * math.pi / 2) * math.log(2.0)
    assert found.low == pytest.approx(4.0 * math.exp(-half))
    assert found.high == pytest.approx(4.0 * math.exp(half))
    turned = paired_ratio([1.0, 1.0], [2.0, 8.0])
    assert turned.mean == pytest.approx(0.25)
    assert turned.low == pytest.approx(1 / (found.high or 0.0)), "the same, whichever is above"


def test_one_pair_has_no_interval() -> None:
    assert paired_difference([3.0], [1.0]) == Paired(mean=2.0, low=None, high=None, pairs=1)
    assert paired_ratio([3.0], [1.0]).high is None
    with pytest.raises(ValueError, match="no pair"):
        paired_difference([], [])
    with pytest.raises(ValueError, match=r"shorter|longer"):
        paired_difference([1.0], [])


@pytest.mark.parametrize(
    ("low", "high", "lower_is_better", "verdict"),
    [
        (-0.2, -0.1, True, "better"),
        (-0.2, -0.1, False, "worse"),
        (0.1, 0.2, True, "worse"),
        (0.1, 0.2, False, "better"),
        (-0.1, 0.1, True, "inconclusive"),
        (0.0, 0.1, True, "inconclusive"),
        (None, None, True, "inconclusive"),
    ],
)
def test_verdicts(low: float | None, high: float | None, lower_is_better: bool, verdict: str) -> None:
    mean = 0.15 if low is None or high is None else (low + high) / 2
    found = Paired(mean=mean, low=low, high=high, pairs=3)
    assert found.verdict(0.0, lower_is_better=lower_is_better) == verdict
