"""A slice of the center: exactly once, whole or not at all, whatever the order of the chunks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from shadowsync.nodes.sync.center import CenterState
from shadowsync.pipeline.types import Float32Array
from shadowsync.pipeline.wire.buffers import bytes_of
from shadowsync.pipeline.wire.center_messages import CenterRead, CenterSeed, CenterValues
from shadowsync.sync_algos.easgd import EASGD, ElasticOptions
from shadowsync.tests.support.held_memory import idle_bytes, session_bytes
from shadowsync.tests.support.sync.center_messages import START, chunks, exchange_of, floats, values_of, whole

A, B = b"a/shadow", b"b/shadow"


def seeded(values: Float32Array, alpha: float = 0.5) -> CenterState:
    state = CenterState(EASGD(ElasticOptions(alpha)).center_rule)
    state.seed(CenterSeed(1, START, START + len(values), START, values))
    return state


def exchange(state: CenterState, client: bytes, request: int, values: Float32Array) -> Float32Array:
    """All in one chunk; gives the delta."""
    (reply,) = state.exchange(client, exchange_of(request, START, values))
    assert (reply.request, reply.start) == (request, START)
    return values_of(reply)


@given(st.integers(1, 30), st.integers(1, 12), st.data())
def test_chunks_in_any_order_and_number_are_applied_once(length: int, size: int, data: st.DataObject) -> None:
    first, replica = floats(length, 1), floats(length, 2)
    state = seeded(first)
    parts = chunks(replica, size)
    order = data.draw(st.permutations(parts))
    repeats = data.draw(st.lists(st.sampled_from(parts), max_size=5))
    replied: dict[int, Float32Array] = {}
    for start, values in [*order[:-1], *repeats, order[-1], *repeats]:
        if not replied:
            np.testing.assert_array_equal(whole(state), first)
        for reply in state.exchange(A, exchange_of(1, start, values)):
            replied[reply.start] = values_of(reply)
    delta = (replica - first) * np.float32(0.5)
    np.testing.assert_array_equal(np.concatenate([replied[at] for at in sorted(replied)]), delta)
    np.testing.assert_array_equal(whole(state), first + delta)
    assert state.applied_slices == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_replica_that_has_diverged_leaves_the_center_as_it_is(bad: float) -> None:
    state = seeded(floats(6, 1))
    wrong = floats(6, 2)
    wrong[4] = bad
    for request, (start, values) in enumerate(chunks(wrong, 6), 1):
        with pytest.raises(ValueError, match="the 6 elements from 100 are not all finite"):
            state.exchange(A, exchange_of(request, start, values))
    np.testing.assert_array_equal(whole(state), floats(6, 1))
    assert state.applied_slices == 0
    # It may come back with another one; a large one is none that has diverged.
    large = np.full(6, 3e38, np.float32)
    np.testing.assert_array_equal(exchange(state, A, 2, large), (large - floats(6, 1)) * np.float32(0.5))


def test_a_repeat_is_answered_from_memory_and_changes_nothing() -> None:
    state = seeded(floats(6, 1))
    delta = exchange(state, A, 1, floats(6, 2))
    after, as_answered = whole(state), delta.copy()
    # Meanwhile another client moved the center; the repeat's answer is still the old one.
    exchange(state, B, 1, floats(6, 3))
    moved = whole(state)
    assert not np.array_equal(after, moved)
    for one in (delta, exchange(state, A, 1, floats(6, 2))):
        np.testing.assert_array_equal(one, as_answered)
    # What was no chunk of it has no answer.
    with pytest.raises(ValueError, match="the exchange had no chunk of 3 elements from 102"):
        state.exchange(A, exchange_of(1, START + 2, floats(3, 9)))
    with pytest.raises(ValueError, match="the exchange had no chunk of 5 elements from 100"):
        state.exchange(A, exchange_of(1, START, floats(5, 9)))
    np.testing.assert_array_equal(whole(state), moved)
    assert (state.applied_slices, state.repeated_chunks) == (2, 3)


def replied(state: CenterState, request: int) -> list[CenterValues]:
    """An exchange in one chunk; what is to be sent, from the client's buffer."""
    return state.exchange(A, exchange_of(request, START, floats(6, request)))


@pytest.mark.parametrize("left", [True, False])
def test_a_buffer_is_used_again_only_when_it_has_left(*, left: bool) -> None:
    state = seeded(floats(6, 1))
    (first,) = replied(state, 1)
    leaving, before = first.payload.data, first.payload.copy()
    place = first.payload.ctypes.data
    del first
    if left:
        del leaving
    (second,) = replied(state, 2)
    assert (second.payload.ctypes.data == place) == left
    assert not np.array_equal(second.payload, before)
    if not left:
        np.testing.assert_array_equal(np.frombuffer(leaving, np.uint8), before)


def test_memory_is_one_buffer_a_client() -> None:
    state = seeded(floats(6, 1))
    for client in (A, B):
        for request in (1, 2, 3):
            exchange(state, client, request, floats(6, request))
    assert session_bytes(state) == {A: 6 * 4, B: 6 * 4}
    assert state.reference_bytes == 0


def test_a_new_request_abandons_the_staged_one() -> None:
    first, replica = floats(6, 1), floats(6, 2)
    state = seeded(first)
    assert state.exchange(A, exchange_of(1, START, floats(3, 8))) == []
    exchange(state, A, 2, replica)
    np.testing.assert_array_equal(whole(state), first + (replica - first) * np.float32(0.5))
    assert state.abandoned_exchanges == 1
    # What is left of the first comes late, and completes nothing.
    assert state.exchange(A, exchange_of(1, START + 3, floats(3, 8))) == []
    assert state.applied_slices == 1
    exchange(state, A, 3, replica)
    assert state.abandoned_exchanges == 1


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from([A, B]), min_size=1, max_size=12),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.integers(1, 9),
)
def test_interleaved_clients_equal_the_sequential_closed_form(
    rounds: list[bytes], alpha: float, size: int
) -> None:
    # Both clients' chunks come by turns; what counts is which slice becomes whole first.
    length = 9
    first = floats(length, 0)
    state = seeded(first, alpha)
    center: NDArray[np.float64] = first.astype(np.float64)
    for number, last in enumerate(rounds, start=1):
        sent = {client: floats(length, 10 * number + place) for place, client in enumerate((A, B))}
        order = [B, A] if last == A else [A, B]
        parts = {client: chunks(sent[client], size) for client in order}
        for at in range(len(parts[A])):
            for client in order:
                start, values = parts[client][at]
                state.exchange(client, exchange_of(number, start, values))
        for client in order:
            center = (1 - alpha) * center + alpha * sent[client].astype(np.float64)
    np.testing.assert_allclose(whole(state), center, rtol=1e-5, atol=1e-6)
    assert state.applied_slices == 2 * len(rounds)
    # The control: one exchange more or less would show.
    wrong = (1 - alpha) * center + alpha * sent[A].astype(np.float64)
    if rounds[-1] != A or alpha < 1.0:
        assert not np.allclose(whole(state), wrong, rtol=1e-5, atol=1e-6)


def test_chunks_that_do_not_make_up_the_slice_are_refused() -> None:
    first = floats(8, 1)
    state = seeded(first)
    assert state.exchange(A, exchange_of(1, START, floats(4, 2))) == []
    # As many elements as are missing, but not those that are: applied, it would be half garbage.
    with pytest.raises(ValueError, match="4 elements from 102 overlap"):
        state.exchange(A, exchange_of(1, START + 2, floats(4, 2)))
    with pytest.raises(ValueError, match="3 elements from 100 overlap"):
        state.exchange(A, exchange_of(1, START, floats(3, 2)))
    np.testing.assert_array_equal(whole(state), first)
    assert state.applied_slices == 0
    assert len(state.exchange(A, exchange_of(1, START + 4, floats(4, 2)))) == 2


@pytest.mark.parametrize(
    ("start", "length"), [(99, 2), (99, 1), (105, 2), (106, 1), (100, 7), (100, 0), (0, 6)]
)
def test_a_chunk_of_another_slice_is_refused(start: int, length: int) -> None:
    state = seeded(floats(6, 1))
    with pytest.raises(ValueError, match="are outside the slice 100 to 106"):
        state.exchange(A, exchange_of(1, start, floats(length, 2)))
    exchange(state, A, 2, floats(6, 2))
    if length:
        with pytest.raises(ValueError, match="are outside the slice"):
            state.exchange(A, exchange_of(2, start, floats(length, 2)))
    assert state.applied_slices == 1


@pytest.mark.parametrize(("start", "stop"), [(99, 103), (103, 107), (103, 103), (104, 103), (0, 2**62)])
def test_what_is_not_of_the_slice_cannot_be_read(start: int, stop: int) -> None:
    state = seeded(floats(6, 1))
    with pytest.raises(ValueError, match="are outside 100 to 106"):
        state.read(CenterRead(1, start, stop))


def test_reading_gives_a_copy_of_a_part() -> None:
    first = floats(6, 1)
    state = seeded(first)
    reply = state.read(CenterRead(1, 102, 105))
    assert reply.start == 102
    part = values_of(reply)
    np.testing.assert_array_equal(part, first[2:5])
    exchange(state, A, 1, floats(6, 2))
    np.testing.assert_array_equal(part, first[2:5])


def test_a_dead_trainer_is_forgotten_and_its_unanswered_slices_counted() -> None:
    state = seeded(floats(6, 1))
    exchange(state, b"dead/shadow", 1, floats(6, 2))
    exchange(state, b"dead/0", 1, floats(6, 2))
    state.exchange(b"dead/1", exchange_of(1, START, floats(3, 2)))
    exchange(state, b"deadly/shadow", 1, floats(6, 2))
    assert state.forget("dead") == 2
    # Two of its buffers at most are kept for others, from the next time on that one is taken.
    exchange(state, b"deadly/0", 1, floats(6, 2))
    assert session_bytes(state) == {b"deadly/shadow": 6 * 4, b"deadly/0": 6 * 4}
    assert idle_bytes(state._buffers) <= 2 * bytes_of(6)
    assert state.forget("dead") == 0
    assert state.forget("deadly") == 2


def test_nothing_is_taken_from_a_trainer_that_was_declared_dead() -> None:
    """It may have been stopped for so long, and not know."""
    state = seeded(floats(6, 3))
    exchange(state, b"zombie/shadow", 1, floats(6, 1))
    before = whole(state).copy()
    state.forget("zombie")
    for client in (b"zombie/shadow", b"zombie/fixed-0"):
        with pytest.raises(ValueError, match="declared dead"):
            exchange(state, client, 2, floats(6, 2))
    np.testing.assert_array_equal(whole(state), before)
    exchange(state, b"zombies/shadow", 1, floats(6, 2))
    assert not np.array_equal(whole(state), before), "the control: another trainer"
