"""Both forms of elastic averaging against their papers' closed forms in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from shadowsync.sync_algos.base import Slice
from shadowsync.tests.support.sync.example_algorithms import SYMMETRIC_EASGD, needs_examples

Float64Array = NDArray[np.float64]
Pair = tuple[Float64Array, Float64Array]
MakeCluster = Callable[..., Any]

RATES = [0.1, 0.5, 0.9, 1.0]


def _shadowsync(w: Float64Array, c: Float64Array, rate: float) -> Pair:
    """ShadowSync, Algorithm 2: the center first, then the replica with the center's new value."""
    c = (1 - rate) * c + rate * w
    return (1 - rate) * w + rate * c, c


def _symmetric(w: Float64Array, c: Float64Array, rate: float) -> Pair:
    """Zhang, Choromanska, LeCun, equations 5 and 6: both with old values."""
    return w - rate * (w - c), c + rate * (w - c)


FORMS = {"easgd": _shadowsync, SYMMETRIC_EASGD: _symmetric}
BOTH = ["easgd", pytest.param(SYMMETRIC_EASGD, id="easgd_symmetric", marks=needs_examples)]


def _double(values: torch.Tensor) -> Float64Array:
    result: Float64Array = values.numpy().astype(np.float64)
    return result


def _close(found: Float64Array, expected: Float64Array) -> None:
    """Equal up to the rounding of float32."""
    np.testing.assert_allclose(found, np.asarray(expected, np.float64), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", BOTH)
def test_closed_form(make_cluster: MakeCluster, name: str, rate: float, parts: int) -> None:
    """Five rounds of two replicas in turn; the streamed deltas are the paper's two lines."""
    cluster = make_cluster(name, parts, elastic_rate=rate)
    expected = [_double(replica.values) for replica in cluster.replicas]
    center = _double(cluster.center.values)
    for number in range(5):
        which = number % 2
        assert cluster.round(which) is True
        expected[which], center = FORMS[name](expected[which], center, rate)
        _close(_double(cluster.center.values), center)
        for replica, values in zip(cluster.replicas, expected, strict=True):
            _close(_double(replica.values), values)
    assert cluster.center.exchanges == 5 * parts


@pytest.mark.parametrize("rate", RATES)
def test_the_two_are_told_apart(make_cluster: MakeCluster, rate: float) -> None:
    """The control of the comparison: the replicas of the two forms differ by α² (w - c)."""
    cluster = make_cluster("easgd", elastic_rate=rate)
    w, c = _double(cluster.replicas[0].values), _double(cluster.center.values)
    cluster.round()
    wrong, same_center = _symmetric(w, c, rate)
    gap = np.abs(_double(cluster.replicas[0].values) - wrong)
    _close(gap, rate**2 * np.abs(w - c))
    assert gap.max() > 0.01
    _close(_double(cluster.center.values), same_center)


@pytest.mark.parametrize("name", BOTH)
def test_progress_during_a_round_stays(make_cluster: MakeCluster, name: str) -> None:
    """Workers step between the snapshot and the answer; the control would shrink what they did."""
    rate = 0.4
    cluster = make_cluster(name, 2, elastic_rate=rate)
    replica = cluster.replicas[0]
    w, c = _double(replica.values), _double(cluster.center.values)
    progress = torch.linspace(-3.0, 3.0, len(w))

    def step(part: Slice) -> None:
        replica.values[part.start : part.stop] += progress[part.start : part.stop]

    cluster.meanwhile = step
    assert cluster.round() is True
    moved, center = FORMS[name](w, c, rate)
    done = _double(progress)
    _close(_double(replica.values), moved + done)
    _close(_double(cluster.center.values), center)
    interpolated = (1 - rate) * (w + done) + rate * center
    shrunk = interpolated - ((1 - rate) * w + rate * center)
    _close(shrunk, (1 - rate) * done)
    assert np.abs(_double(replica.values) - interpolated).max() > 1.0


@pytest.mark.parametrize("name", BOTH)
def test_a_lost_slice(make_cluster: MakeCluster, name: str) -> None:
    """The others are applied whole, the lost one is as it was, and the round does not count."""
    cluster = make_cluster(name, 4, elastic_rate=0.5)
    replica = cluster.replicas[0]
    lost = cluster.center.slices[2]
    cluster.center.lose(lost)
    w, c = _double(replica.values), _double(cluster.center.values)
    assert cluster.round() is False
    moved, center = FORMS[name](w, c, 0.5)
    inside = np.zeros(len(w), dtype=bool)
    inside[lost.start : lost.stop] = True
    _close(_double(replica.values), np.where(inside, w, moved))
    _close(_double(cluster.center.values), np.where(inside, c, center))
    assert np.array_equal(_double(replica.values)[inside], w[inside])
    assert np.abs(moved - w)[inside].max() > 0.01, "the control: it would have moved"


def test_all_slices_lost(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("easgd", 3)
    for part in cluster.center.slices:
        cluster.center.lose(part)
    before, center = cluster.replicas[0].values.clone(), cluster.center.values.clone()
    assert cluster.round() is False
    assert torch.equal(cluster.replicas[0].values, before)
    assert torch.equal(cluster.center.values, center)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", BOTH)
def test_equal_sides_stay_equal(make_cluster: MakeCluster, name: str, rate: float) -> None:
    """Bit for bit: a round of a replica that is its center changes nothing."""
    cluster = make_cluster(name, 3, elastic_rate=rate)
    replica = cluster.replicas[0]
    replica.values.copy_(cluster.center.values)
    before = replica.values.clone()
    for _ in range(3):
        assert cluster.round(0) is True
    assert torch.equal(replica.values, before)
    assert torch.equal(cluster.center.values, before)
    cluster.round(1)
    assert not torch.equal(cluster.center.values, before), "the control: another replica moves it"


@pytest.mark.parametrize("name", BOTH)
def test_replicas_meet(make_cluster: MakeCluster, name: str) -> None:
    cluster = make_cluster(name, elastic_rate=0.5)
    first, second = cluster.replicas
    apart = float((first.values - second.values).norm())
    for number in range(60):
        cluster.round(number % 2)
    for values in (first.values, second.values):
        torch.testing.assert_close(values, cluster.center.values, rtol=1e-4, atol=1e-5)
    assert apart > 1.0


@needs_examples
def test_what_one_gives_the_other_takes(make_cluster: MakeCluster) -> None:
    """Only the symmetric form conserves the sum of both sides; the other one is the control."""
    change = {}
    for name in FORMS:
        cluster = make_cluster(name, elastic_rate=0.3)
        total = cluster.replicas[0].values + cluster.center.values
        cluster.round()
        change[name] = float((cluster.replicas[0].values + cluster.center.values - total).abs().max())
    assert change[SYMMETRIC_EASGD] < 1e-6
    assert change["easgd"] > 1e-2


@pytest.mark.parametrize("name", BOTH)
def test_center_rule_moves_in_place_and_leaves_the_request(make_cluster: MakeCluster, name: str) -> None:
    algorithm = make_cluster(name, elastic_rate=0.25).algorithm
    center, values = torch.zeros(4), torch.full((4,), 8.0)
    reply = algorithm.center_rule(center, values)
    assert reply.tolist() == [2.0] * 4
    assert center.tolist() == [2.0] * 4
    assert values.tolist() == [8.0] * 4, "a resent request sends the same"
    assert reply.data_ptr() not in (center.data_ptr(), values.data_ptr())
