"""How far replicas are apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from shadowsync.nodes.control.divergence import Divergence


def at_once(replicas: NDArray[np.float64]) -> float:
    """The formula, without chunks: ‖w_i - mean‖ / ‖mean‖, averaged over the replicas."""
    mean = replicas.mean(axis=0)
    distances = [float(np.linalg.norm(replica - mean)) for replica in replicas]
    return sum(distances) / len(distances) / float(np.linalg.norm(mean))


@given(st.integers(2, 5), st.integers(1, 40), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_chunk_by_chunk_it_is_the_formula(replicas: int, length: int, chunk: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(replicas, length)).astype(np.float32)
    sums = Divergence(replicas)
    for start in range(0, length, chunk):
        sums.add([row[start : start + chunk] for row in values])
    measured = sums.value()
    assert measured is not None
    assert measured == pytest.approx(at_once(values.astype(np.float64)), rel=1e-9)


def test_equal_replicas_do_not_diverge() -> None:
    sums = Divergence(3)
    sums.add([np.full(5, 2.0, np.float32)] * 3)
    assert sums.value() == 0.0


def test_it_grows_with_the_distance_and_not_with_the_scale() -> None:
    def of(*values: float) -> float | None:
        sums = Divergence(len(values))
        sums.add([np.full(4, value, np.float32) for value in values])
        return sums.value()

    assert of(0.9, 1.1) == pytest.approx(0.1, rel=1e-6)
    assert of(0.8, 1.2) == pytest.approx(0.2, rel=1e-6)
    assert of(80.0, 120.0) == pytest.approx(0.2, rel=1e-6)
    # One of four is far off: the average over replicas, not the root of a sum.
    assert of(1.0, 1.0, 1.0, 5.0) == pytest.approx(0.75, rel=1e-6)


def test_around_a_mean_of_zero_there_is_none() -> None:
    assert Divergence(2).value() is None
    sums = Divergence(2)
    sums.add([np.full(3, 1.0, np.float32), np.full(3, -1.0, np.float32)])
    assert sums.value() is None
