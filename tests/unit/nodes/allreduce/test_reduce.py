"""The all-reduce is exact, and the same on all, whatever the peers, the sizes and the order of things."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.pipeline.codecs.formats import CODECS, LinkCodecs, make_codec
from shadowsync.pipeline.weighted_mean import WeightedMean
from shadowsync.pipeline.wire.peer_messages import PeerChunk, PeerResult
from shadowsync.sync_algos.contract.grouping import Grouping, everyone, fixed, shuffled
from shadowsync.tests.support.sync.exact_mean import exact_mean, is_mean
from shadowsync.tests.support.sync.peer_net import Lossy, Net, Trainer


def finish(net: Net, rounds: int) -> None:
    """Runs until all have so many results."""

    def done(trainer: Trainer) -> bool:
        return len(trainer.results) == rounds

    assert net.run(lambda: all(done(trainer) for trainer in net.trainers))


def check_rounds(net: Net, rounds: int) -> None:
    """All of a round's group have the same result, the exact mean of what they gave."""
    finish(net, rounds)
    for trainer in net.trainers:
        for number, (met, result) in enumerate(zip(trainer.met, trainer.results.values(), strict=True)):
            group = [net.trainers[member] for member in met.group]
            assert trainer.index in met.group
            assert is_mean(result, [t.given[number] for t in group], [t.weight for t in group])
            for other in group:
                assert other.results[met.round_id].tobytes() == result.tobytes()
    assert not any(t.ended for t in net.trainers)


GROUPINGS = st.sampled_from([everyone, fixed(2), fixed(3), shuffled(2), shuffled(3)])


@settings(max_examples=60)
@given(
    count=st.integers(1, 8),
    numel=st.integers(0, 60),
    chunk=st.integers(1, 20),
    eager=st.booleans(),
    grouping=GROUPINGS,
    weights=st.none() | st.lists(st.sampled_from([0.0, 1.0, 2.5, 1e-30, 1e30]), min_size=8, max_size=8),
    loss=st.sampled_from([0.0, 0.0, 0.2]),
    seed=st.integers(0, 2**20),
)
def test_the_mean_is_exact_and_the_same_on_all(
    count: int,
    numel: int,
    chunk: int,
    eager: bool,
    grouping: Grouping,
    weights: list[float] | None,
    loss: float,
    seed: int,
) -> None:
    """Messages of different pairs overtake each other, some are lost, some come twice."""
    net = Net(count, numel, chunk_elements=chunk, eager=eager, seed=seed)
    net.lose = Lossy(loss, seed)
    net.repeat = lambda message: net.random.random() < loss  # noqa: ARG005
    for trainer in net.trainers:
        trainer.grouping = grouping
        trainer.weight = weights[trainer.index] if weights else 1.0
    net.meeting(2)
    check_rounds(net, 2)


def test_about_twice_the_values_leave_a_member() -> None:
    """2 (n - 1) / n of them, to the byte."""
    for count in (2, 3, 4, 6):
        net = Net(count, 120, chunk_elements=7)
        net.meeting()
        check_rounds(net, 1)
        payload = [m.payload.nbytes for _, _, m in net.sent if isinstance(m, PeerChunk | PeerResult)]
        assert sum(payload) == count * 120 * 4 * 2 * (count - 1) // count


@settings(max_examples=40)
@given(
    count=st.integers(2, 5),
    up=st.sampled_from(sorted(CODECS)),
    down=st.sampled_from(sorted(CODECS)),
    numel=st.integers(1, 80),
    seed=st.integers(0, 2**20),
)
def test_lossy_codecs_leave_all_alike(count: int, up: str, down: str, numel: int, seed: int) -> None:
    """Four rounds; losses and repeats change nothing, since everything is encoded once."""
    found: list[list[bytes]] = []
    for loss in (0.0, 0.2):
        codecs = LinkCodecs(make_codec(up), make_codec(down))
        net = Net(count, numel, chunk_elements=16, codecs=codecs, seed=seed)
        net.lose = Lossy(loss, seed)
        net.meeting(4)
        finish(net, 4)
        results = [[r.tobytes() for r in t.results.values()] for t in net.trainers]
        assert all(other == results[0] for other in results)
        found.append(results[0])
    assert found[0] == found[1]


def errors_of(codec: str, rounds: int) -> tuple[float, float, float, int]:
    """Relative errors of the first, second and last result, and bytes of the last round. The values change
    once, after the first round, and then stay."""
    net = Net(3, 600, chunk_elements=100, codecs=LinkCodecs(make_codec(codec), make_codec(codec)))
    net.regroup(range(3))
    for number in range(rounds):
        net.want(1)
        net.sent.clear()
        for trainer in net.trainers:
            trainer.changes = min(number, 1)
        finish(net, number + 1)
    results = [result.astype(np.float64) for result in net.trainers[0].results.values()]
    first = exact_mean([t.given[0] for t in net.trainers], [1, 1, 1])
    exact = exact_mean([t.given[-1] for t in net.trainers], [1, 1, 1])
    payloads = [m.payload for _, _, m in net.sent if isinstance(m, PeerChunk | PeerResult)]
    size = np.abs(exact).mean()
    return (
        float(np.abs(results[0] - first).mean() / size),
        float(np.abs(results[1] - exact).mean() / size),
        float(np.abs(results[-1] - exact).mean() / size),
        sum(payload.nbytes for payload in payloads),
    )


@pytest.mark.parametrize("codec", ["bfloat16", "int8", "int4", "int2", "topk"])
def test_what_a_lossy_codec_loses_comes_later(codec: str) -> None:
    """The results go to the exact mean of values that stay, though they are far from each other."""
    # Of a chunk of 100 topk sends 5, in few bits.
    first, second, last, sent = errors_of(codec, 120 if codec == "topk" else 60)
    assert first < 1e-7, "the first round travels as float32"
    assert second > 1e-4, "the control: it loses something"
    assert last < second / 100
    *plain_errors, plain_sent = errors_of("float32", 2)
    assert max(plain_errors) < 1e-7
    assert sent < 0.6 * plain_sent


@pytest.mark.parametrize("weights", [[1.0, 1.0], [2.0, 1.0], [1.0, 1.0, 1.0], [0.0, 0.0], [1e300, 1e300]])
def test_a_mean_in_range_is_found_though_sums_are_not(weights: list[float]) -> None:
    largest = np.finfo(np.float32).max
    parts = [np.array([largest, -largest, largest / 2], dtype=np.float32) for _ in weights]
    out = np.empty(3, dtype=np.float32)
    WeightedMean().into(out, parts, weights)
    assert out.tolist() == parts[0].tolist()
    with np.errstate(over="ignore"):
        naive = sum(parts) / np.float32(len(parts))
    assert not np.isfinite(naive).all(), "the control"


def test_infinities_and_nans_are_those_of_arithmetic() -> None:
    one = np.array([np.inf, np.inf, np.nan, 1.0], dtype=np.float32)
    other = np.array([1.0, -np.inf, 1.0, 2.0], dtype=np.float32)
    out = np.empty(4, dtype=np.float32)
    WeightedMean().into(out, [one, other], [1.0, 1.0])
    assert np.isposinf(out[0])
    assert np.isnan(out[1:3]).all()
    assert out[3] == 1.5


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [3.0, 1.0, 2.0], [0.0, 1.0, 5.0]])
def test_where_arrays_are_near_a_mean_is_rounded_once(weights: list[float]) -> None:
    """The control: summed in float32, it has the errors of several sums."""
    random = np.random.default_rng(1)
    near = random.normal(size=100_000)
    parts = [(near * (1 + 1e-4 * random.normal(size=len(near)))).astype(np.float32) for _ in weights]
    out = np.empty(len(near), dtype=np.float32)
    WeightedMean().into(out, parts, weights)
    assert is_mean(out, parts, weights)
    shares = [np.float32(weight / sum(weights)) for weight in weights]
    summed = np.zeros_like(out)
    for part, share in zip(parts, shares, strict=True):
        summed += part * share
    assert not is_mean(summed, parts, weights)


@pytest.mark.parametrize("weights", [[1.0] * 3, [0.3, 0.1, 7.0], [0.0] * 5])
def test_equal_arrays_have_themselves_as_their_mean(weights: list[float]) -> None:
    part = np.random.default_rng(2).normal(size=1000).astype(np.float32)
    out = np.empty(1000, dtype=np.float32)
    WeightedMean().into(out, [part] * len(weights), weights)
    np.testing.assert_array_equal(out, part)


def test_an_array_without_weight_takes_no_digits_from_the_others() -> None:
    parts = [np.full(8, value, dtype=np.float32) for value in (1e30, 1.25, 2.5)]
    out = np.empty(8, dtype=np.float32)
    WeightedMean().into(out, parts, [0.0, 1.0, 1.0])
    np.testing.assert_array_equal(out, np.full(8, 1.875, dtype=np.float32))
