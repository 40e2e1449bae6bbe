"""A center that merges: contributions count once, all are answered when the merge closes."""

from __future__ import annotations

import numpy as np
import pytest
from shadowsync.nodes.sync.center import CenterState
from shadowsync.nodes.sync.slice_merges import MOST_EXAMPLES, SliceMerges
from shadowsync.pipeline.codecs.feedback import CODED_DELTA, NO_REFERENCE, Deltas, Reference
from shadowsync.pipeline.codecs.formats import CodecOptions, LinkCodecs, make_codec
from shadowsync.pipeline.types import Float32Array
from shadowsync.pipeline.wire.center_messages import CenterContribution, CenterSeed, CenterValues
from shadowsync.sync_algos.decoupled import Decoupled, DecoupledOptions
from shadowsync.sync_algos.easgd import EASGD, ElasticOptions
from shadowsync.tests.support.sync.center_messages import START, chunks, exchange_of, floats, values_of, whole

A, B, C = b"a/shadow", b"b/shadow", b"c/shadow"
LENGTH = 40
ZERO = np.zeros(LENGTH, dtype=np.float32)


def contribution(request: int, start: int, values: Float32Array, examples: int) -> CenterContribution:
    return CenterContribution(request, start, len(values), 0, values.view(np.uint8), examples)


def merging(quorum: int = 3) -> CenterState:
    """Without momentum and grace, so that the mean and the times are plain; the quorum is of all."""
    algorithm = Decoupled(DecoupledOptions(block_momentum=0.0, grace=0.0, quorum=quorum))
    state = CenterState(algorithm.center_rule, None, SliceMerges(algorithm))
    state.seed(CenterSeed(1, START, START + LENGTH, START, np.zeros(LENGTH, dtype=np.float32)))
    return state


def send(
    state: CenterState, client: bytes, request: int, seed: int, examples: int, now: float
) -> Float32Array:
    """All chunks of one contribution; nothing is answered yet."""
    values = floats(LENGTH, seed) if examples else ZERO
    for start, part in chunks(values, 16):
        assert state.exchange(client, contribution(request, start, part, examples), now) == []
    return values


def answers(state: CenterState, now: float) -> dict[bytes, Float32Array]:
    """The whole answers of a merge that is due, by client."""
    found: dict[bytes, list[CenterValues]] = {}
    for client, reply in state.close_merge(now) if state.closes_at(now) <= now else ():
        found.setdefault(client, []).append(reply)
    return {
        client: np.concatenate([values_of(one) for one in sorted(replies, key=lambda one: one.start)])
        for client, replies in found.items()
    }


def warmed() -> CenterState:
    """Three trainers that have been in a merge, at 0 s, with 10 examples each."""
    state = merging()
    for number, client in enumerate((A, B, C)):
        send(state, client, 1, 1, 0, -30.0 + 10.0 * number)
        assert set(answers(state, -29.0 + 10.0 * number)) == {client}
    for client in (A, B, C):
        send(state, client, 2, 2, 10, 0.0)
    assert set(answers(state, 0.0)) == {A, B, C}
    return state


def test_a_merge_has_the_mean_by_examples_and_answers_all() -> None:
    state = warmed()
    before = whole(state).copy()
    first = send(state, A, 7, 11, 30, 0.1)
    assert answers(state, 0.1) == {}
    second = send(state, B, 7, 12, 10, 0.1)
    third = send(state, C, 7, 13, 20, 0.1)
    found = answers(state, 0.1)
    mean = (30.0 * first + 10.0 * second + 20.0 * third) / 60.0
    worth = 60.0**2 / (30.0**2 + 10.0**2 + 20.0**2) / 3.0
    np.testing.assert_allclose(whole(state), before + worth * mean, rtol=1e-5, atol=1e-6)
    for client in (A, B, C):
        np.testing.assert_array_equal(found[client], whole(state))
    assert state.merges is not None
    assert {name: one.examples for name, one in state.merges.trainers.items()} == {"a": 40, "b": 20, "c": 30}
    assert state.applied_slices == 9


def test_a_repeated_chunk_counts_once_and_is_answered_again() -> None:
    state = warmed()
    values = send(state, A, 7, 11, 30, 0.1)
    for start, part in chunks(values, 16):
        assert state.exchange(A, contribution(7, start, part, 30), 0.2) == []
    for client in (B, C):
        send(state, client, 7, 12, 10, 0.2)
    found = answers(state, 0.2)[A]
    start, part = chunks(values, 16)[1]
    (again,) = state.exchange(A, contribution(7, start, part, 30), 0.3)
    np.testing.assert_array_equal(values_of(again), found[16:32])
    assert state.repeated_chunks == 1
    assert state.merges is not None
    assert state.merges.trainers["a"].examples == 40


def test_a_late_trainer_is_in_the_next_merge() -> None:
    state = warmed()
    send(state, A, 7, 11, 30, 0.1)
    send(state, B, 7, 12, 10, 0.1)
    # Its quorum is of three; the longest wait is a second.
    assert state.closes_at(0.1) == pytest.approx(1.1)
    assert set(answers(state, 1.1)) == {A, B}
    assert state.merges is not None
    assert state.merges.late_merges == 1
    counts = state.merges.trainers
    assert {name: one.missed_merges for name, one in counts.items()} == {"a": 0, "b": 0, "c": 1}
    send(state, C, 7, 13, 90, 1.2)
    assert set(answers(state, 2.2)) == {C}
    assert (counts["c"].examples, counts["c"].merges, counts["c"].missed_merges) == (100, 3, 1)


def test_of_a_trainer_that_died_its_contribution_stays_and_nobody_waits_for_it() -> None:
    state = warmed()
    send(state, C, 7, 13, 90, 0.1)
    send(state, A, 7, 11, 30, 0.1)
    state.forget("c")
    state.forget("b")
    found = answers(state, 0.1)
    assert set(found) == {A}
    assert state.merges is not None
    assert state.merges.trainers["c"].examples == 100
    with pytest.raises(ValueError, match="declared dead"):
        send(state, C, 8, 13, 90, 0.2)


def test_a_center_made_again_begins_without_what_it_had_not_merged() -> None:
    state = warmed()
    send(state, A, 7, 11, 30, 0.1)
    state.await_seeds()
    for client in (A, B):
        state.seed(CenterSeed(1, START, START + LENGTH, START, floats(LENGTH, 21)), client)
    assert state.seed_mean() == 2
    np.testing.assert_allclose(whole(state), floats(LENGTH, 21), rtol=1e-6)
    send(state, A, 9, 11, 30, 0.3)
    assert set(answers(state, 0.3)) == {A}
    np.testing.assert_allclose(whole(state), floats(LENGTH, 21) + floats(LENGTH, 11), rtol=1e-5, atol=1e-6)


def test_contributions_that_cannot_be() -> None:
    state = warmed()
    values = floats(LENGTH, 1)
    with pytest.raises(ValueError, match="merges, and needs the number of examples"):
        state.exchange(A, exchange_of(7, START, values), 0.1)
    with pytest.raises(ValueError, match="at most"):
        state.exchange(A, contribution(7, START, values, MOST_EXAMPLES + 1), 0.1)
    state = warmed()
    send(state, A, 7, 11, 30, 0.1)
    with pytest.raises(ValueError, match="not merged yet"):
        state.exchange(A, contribution(8, START, values, 1), 0.1)
    plain = CenterState(EASGD(ElasticOptions(0.5)).center_rule)
    plain.seed(CenterSeed(1, START, START + LENGTH, START, values))
    with pytest.raises(ValueError, match="does not merge"):
        plain.exchange(A, contribution(1, START, values, 1), 0.1)


@pytest.mark.parametrize("name", ["int8", "int4", "int2", "topk"])
def test_lossy_deltas_are_merged_as_they_are_decoded_and_answers_refer_to_the_last(name: str) -> None:
    codec = make_codec(name, CodecOptions(int8_block=64, topk_fraction=0.2))
    algorithm = Decoupled(DecoupledOptions(block_momentum=0.0, grace=0.0, quorum=2))
    state = CenterState(algorithm.center_rule, LinkCodecs(codec, codec), SliceMerges(algorithm))
    senders = [Deltas(codec, LENGTH) for _ in (A, B)]
    receivers = [Reference(codec, LENGTH) for _ in (A, B)]
    counts, exact = (10, 30), np.zeros(LENGTH)
    # q / n: 40² / (10² + 30²) of 2.
    share = 0.8

    def merge(number: int, deltas: list[Float32Array]) -> list[CenterValues]:
        for client, sender, delta, count in zip((A, B), senders, deltas, counts, strict=True):
            version, encoded = sender.encode(0, delta)
            assert version == CODED_DELTA
            message = CenterContribution(number, START, LENGTH, version, encoded.payload, count)
            assert state.exchange(client, message, float(number)) == []
        return [reply for _, reply in state.close_merge(float(number))]

    def seed(request: int) -> None:
        zero = np.zeros(LENGTH, dtype=np.float32)
        for client in (A, B):
            state.seed(CenterSeed(request, START, START + LENGTH, START, zero), client)
        state.seed_mean()

    seed(1)
    for number in range(1, 60):
        deltas = [floats(LENGTH, 2 * number + at) for at in range(2)] if number < 8 else [ZERO, ZERO]
        replies = merge(number, deltas)
        given = [delta - sender.lost for delta, sender in zip(deltas, senders, strict=True)]
        exact += share * np.average(given, axis=0, weights=counts)
        np.testing.assert_allclose(whole(state), exact, atol=1e-4)
        for reply, receiver in zip(replies, receivers, strict=True):
            assert reply.coded == (number > 1), "the first one has nothing to refer to"
            receiver.begin()
            base = receiver.base if reply.coded else NO_REFERENCE
            receiver.values[:] = receiver.decode(0, base, reply.payload, LENGTH)
            receiver.complete(number)
        if number == 7:
            assert np.abs(receivers[0].values - whole(state)).max() > 1e-4, "the control: a codec loses some"
    assert np.abs(receivers[0].values - whole(state)).max() < 1e-4
    assert state.reference_bytes == 2 * 4 * LENGTH
    state.await_seeds()
    assert state.reference_bytes == 0
    seed(2)
    assert [reply.coded for reply in merge(60, [ZERO, ZERO])] == [False, False]


def test_a_delta_that_refers_to_an_exchange_is_refused() -> None:
    state = merging()
    payload = np.zeros(4 * LENGTH, dtype=np.uint8)
    with pytest.raises(ValueError, match="the delta refers to exchange 7, and deltas refer to none"):
        state.exchange(A, CenterContribution(1, START, LENGTH, 7, payload, 3), 0.0)
    assert state.exchange(A, CenterContribution(1, START, LENGTH, 0, payload, 3), 0.0) == []
