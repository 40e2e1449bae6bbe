"""Both forms of elastic averaging against their papers' closed forms in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from shadowsync.sync_algos.catalog.registry import make_algorithm
from shadowsync.sync_algos.memory.cluster import MemoryCluster
from shadowsync.sync_algos.memory.faults import Phase
from shadowsync.tests.support.sync.example_algorithms import SYMMETRIC_EASGD, needs_examples

Float64Array = NDArray[np.float64]
Pair = tuple[Float64Array, Float64Array]

SIZE = 37
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


def made(name: str, parts: int = 1, **options: Any) -> MemoryCluster:
    """Two trainers and a center, all of different values."""
    draw = torch.Generator().manual_seed(11)
    first = torch.randn(SIZE, generator=draw)
    cluster = MemoryCluster(lambda: make_algorithm(name, options), first, 2, parts=parts)
    for replica in cluster.replicas:
        replica.values.copy_(torch.randn(SIZE, generator=draw))
    return cluster


def round_of(cluster: MemoryCluster, which: int = 0) -> bool:
    """The result of one trainer's round, while the other one does nothing."""
    return cluster.round(who=[which])[which]


def _double(values: torch.Tensor) -> Float64Array:
    result: Float64Array = values.numpy().astype(np.float64)
    return result


def _close(found: Float64Array, expected: Float64Array) -> None:
    """Equal up to the rounding of float32."""
    np.testing.assert_allclose(found, np.asarray(expected, np.float64), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", BOTH)
def test_closed_form(name: str, rate: float, parts: int) -> None:
    """Five rounds of two replicas in turn; the streamed deltas are the paper's two lines."""
    cluster = made(name, parts, elastic_rate=rate)
    expected = [_double(replica.values) for replica in cluster.replicas]
    center = _double(cluster.center.values)
    for number in range(5):
        which = number % 2
        assert round_of(cluster, which) is True
        expected[which], center = FORMS[name](expected[which], center, rate)
        _close(_double(cluster.center.values), center)
        for replica, values in zip(cluster.replicas, expected, strict=True):
            _close(_double(replica.values), values)
    assert cluster.center.exchanges == 5 * parts


@pytest.mark.parametrize("rate", RATES)
def test_the_two_are_told_apart(rate: float) -> None:
    """The control of the comparison: the replicas of the two forms differ by α² (w - c)."""
    cluster = made("easgd", elastic_rate=rate)
    w, c = _double(cluster.replicas[0].values), _double(cluster.center.values)
    round_of(cluster)
    wrong, same_center = _symmetric(w, c, rate)
    gap = np.abs(_double(cluster.replicas[0].values) - wrong)
    _close(gap, rate**2 * np.abs(w - c))
    assert gap.max() > 0.01
    _close(_double(cluster.center.values), same_center)


@pytest.mark.parametrize("name", BOTH)
def test_progress_during_a_round_stays(name: str) -> None:
    """Workers step between the snapshot and the answer; the control would shrink what they did."""
    rate = 0.4
    cluster = made(name, 2, elastic_rate=rate)
    replica = cluster.replicas[0]
    w, c = _double(replica.values), _double(cluster.center.values)
    progress = torch.linspace(-3.0, 3.0, len(w))

    steps = iter([progress])

    def step(_: int, phase: Phase) -> None:
        if phase is Phase.TAKING:
            replica.values.add_(next(steps, torch.zeros(1)))

    cluster.on_phase = step
    assert round_of(cluster) is True
    moved, center = FORMS[name](w, c, rate)
    done = _double(progress)
    _close(_double(replica.values), moved + done)
    _close(_double(cluster.center.values), center)
    interpolated = (1 - rate) * (w + done) + rate * center
    shrunk = interpolated - ((1 - rate) * w + rate * center)
    _close(shrunk, (1 - rate) * done)
    assert np.abs(_double(replica.values) - interpolated).max() > 1.0


@pytest.mark.parametrize("name", BOTH)
def test_a_lost_slice(name: str) -> None:
    """The others are applied whole, the lost one is as it was, and the round does not count."""
    cluster = made(name, 4, elastic_rate=0.5)
    replica = cluster.replicas[0]
    lost = cluster.center.slices[2]
    cluster.center.lose(lost)
    w, c = _double(replica.values), _double(cluster.center.values)
    assert round_of(cluster) is False
    moved, center = FORMS[name](w, c, 0.5)
    inside = np.zeros(len(w), dtype=bool)
    inside[lost.start : lost.stop] = True
    _close(_double(replica.values), np.where(inside, w, moved))
    _close(_double(cluster.center.values), np.where(inside, c, center))
    assert np.array_equal(_double(replica.values)[inside], w[inside])
    assert np.abs(moved - w)[inside].max() > 0.01, "the control: it would have moved"
