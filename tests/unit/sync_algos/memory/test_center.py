"""The mean in memory, and the center while somebody dies."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.sync_algos.easgd import EASGD, ElasticOptions
from shadowsync.sync_algos.memory.cluster import MemoryCluster
from shadowsync.sync_algos.memory.faults import Action, Fault, Phase
from shadowsync.sync_algos.memory.meeting import weighted_mean

WHO = [0, 1, 2]
FLOATS = st.floats(-1e6, 1e6, width=32)


@given(st.lists(st.tuples(FLOATS, st.integers(0, 1000)), min_size=1, max_size=8))
def test_the_mean_is_exact_to_float32_rounding(parts: list[tuple[float, int]]) -> None:
    weights = [weight for _, weight in parts]
    used = weights if any(weights) else [1] * len(parts)
    terms = [Fraction(value) * weight for (value, _), weight in zip(parts, used, strict=True)]
    exact = sum(terms, Fraction(0)) / sum(used)
    values = [torch.tensor([value]) for value, _ in parts]
    found = float(weighted_mean(values, [float(weight) for weight in weights])[0])
    half_a_step = Fraction(math.ulp(abs(found))) * 2**28 + Fraction(1, 2**149)
    largest = max(abs(value) for value, _ in parts)
    assert abs(Fraction(found) - exact) <= half_a_step + Fraction(largest) / 2**49


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("phase", [Phase.GIVING, Phase.TAKING])
def test_one_dies_in_an_exchange_with_the_center(who: int, phase: Phase) -> None:
    """Before the center has its slice nothing is applied, afterwards only the center has moved."""
    options = ElasticOptions(elastic_rate=1.0)
    cluster = MemoryCluster(lambda: EASGD(options), torch.zeros(2), 3)
    for index, replica in enumerate(cluster.replicas):
        replica.values.fill_(2.0**index)
    results = cluster.round([Fault(who, Action.DIE, who, phase)], who=[who])
    assert results == {}
    assert cluster.center.values.tolist() == [2.0**who if phase is Phase.TAKING else 0.0] * 2
    assert cluster.replicas[who].values.tolist() == [2.0**who] * 2


def test_a_sync_node_that_dies_after_it_applied() -> None:
    cluster = MemoryCluster(lambda: EASGD(ElasticOptions(elastic_rate=0.5)), torch.zeros(2), 1, parts=2)
    cluster.replicas[0].values.fill_(4.0)
    first, _ = cluster.center.slices
    cluster.center.lose(first, after_applying=True)
    assert cluster.round() == {0: False}
    assert cluster.center.values.tolist() == [2.0, 2.0]
    assert cluster.replicas[0].values.tolist() == [4.0, 3.0]
    assert cluster.round() == {0: False}
    assert cluster.center.values.tolist() == [2.0, 2.5], "it is gone for good"
