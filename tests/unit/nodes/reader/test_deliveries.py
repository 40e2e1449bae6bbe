"""A reader's deliveries: credit, repeats, passes, and what a dead trainer held."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from shadowsync.nodes.reader.deliveries import DeliveryState, size_of
from shadowsync.nodes.reader.waiting_batches import TRAINING
from shadowsync.pipeline.wire.endpoints import token_of
from shadowsync.pipeline.wire.messages import Credit, CreditNoted, Delivery
from shadowsync.pipeline.wire.rpc.retransmission import DELIVERY
from shadowsync.tests.support.data.batches import batch_id, make_batch

PLENTY = 1 << 30
A, A1, B = b"a/0", b"a/1", b"b/0"


def state_with(
    *batches: int, retain_bytes: int = PLENTY, pass_number: int = TRAINING, consecutive: int = 1
) -> DeliveryState:
    state = DeliveryState(retain_bytes, consecutive)
    for number in batches:
        state.offer(pass_number, make_batch(number))
    return state


def credit(limit: int, received: int = 0, done: int = 0) -> Credit:
    return Credit(limit=limit, received=received, done=done)


def numbers(out: list[tuple[bytes, Delivery]]) -> list[tuple[bytes, int, int]]:
    return [(identity, delivery.sequence, delivery.id.number) for identity, delivery in out]


def test_a_delivery_is_the_batch() -> None:
    state = DeliveryState(PLENTY)
    batch = make_batch(5, examples=4)
    state.offer(TRAINING, batch)
    state.credit(A, credit(1))
    ((identity, delivery),) = state.deliveries(0.0)
    assert identity == A
    assert (delivery.sequence, delivery.pass_number, delivery.id) == (1, TRAINING, batch.id)
    for sent, given in ((delivery.labels, batch.labels), (delivery.dense, batch.dense)):
        np.testing.assert_array_equal(sent, given)
    np.testing.assert_array_equal(delivery.rows, batch.rows)


def test_workers_are_served_in_turn() -> None:
    state = state_with(*range(5))
    state.credit(A, credit(5))
    state.credit(B, credit(2))
    assert numbers(state.deliveries(0.0)) == [(A, 1, 0), (B, 1, 1), (A, 2, 2), (B, 2, 3), (A, 3, 4)]


def test_what_each_trainer_was_sent_to_train_is_counted_once() -> None:
    state = state_with(*range(5))
    for identity in (A, A1, B):
        state.credit(identity, credit(1))
    size = len(make_batch(0))
    assert len(state.deliveries(0.0)) == 3
    assert state.delivered_examples == {"a": 2 * size, "b": size}
    # A repeat, and a batch to score.
    assert len(state.overdue(DELIVERY.interval_seconds + 1.0)) == 3
    state.offer(TRAINING + 1, make_batch(9))
    state.lose("b")
    state.credit(A, credit(4, received=1, done=1))
    sent = state.deliveries(0.0)
    trained = [delivery for _, delivery in sent if delivery.pass_number == TRAINING]
    assert len(trained) < len(sent) == 3
    assert state.delivered_examples == {"a": (2 + len(trained)) * size, "b": size}


def test_a_credit_beyond_what_a_worker_may_have_gives_no_more_than_that() -> None:
    """Nobody takes what is of others."""
    state = DeliveryState(PLENTY, window=2)
    for number in range(6):
        state.offer(TRAINING, make_batch(number))
    state.credit(A, credit(2**62))
    assert numbers(state.deliveries(0.0)) == [(A, 1, 0), (A, 2, 1)]
    state.credit(B, credit(2))
    assert numbers(state.deliveries(0.0)) == [(B, 1, 2), (B, 2, 3)]
    state.credit(A, credit(3, received=2, done=1))
    assert numbers(state.deliveries(0.0)) == [(A, 3, 4)]


def test_an_older_credit_changes_nothing() -> None:
    state = state_with(*range(6))
    state.credit(A, credit(4))
    state.deliveries(0.0)
    state.credit(A, credit(5, received=4, done=3))
    kept = state.retained_bytes
    state.credit(A, credit(2, received=1, done=0))
    assert state.retained_bytes == kept
    assert numbers(state.deliveries(0.0)) == [(A, 5, 4)]
    assert numbers(state.overdue(DELIVERY.interval_seconds + 1)) == [(A, 5, 4)]


def test_a_credit_that_says_nothing_new_is_answered() -> None:
    state = state_with(*range(3))
    assert state.credit(A, credit(2)) is None
    state.deliveries(0.0)
    assert state.credit(A, credit(2)) == CreditNoted(2)
    assert state.credit(B, credit(2)) is None
    assert state.credit(A, credit(2, received=1)) is None
    assert state.credit(A, credit(2, received=1)) == CreditNoted(2)
    state.lose("a")
    assert state.credit(A, credit(2, received=1)) is None


def test_a_credit_beyond_what_was_sent_is_no_promise() -> None:
    state = state_with(*range(4))
    state.credit(A, credit(2, received=99, done=99))
    state.deliveries(0.0)
    # What is sent after it is not done, though the claim covered it.
    state.credit(A, credit(2))
    assert state.outstanding(TRAINING) == 4
    assert len(state.overdue(DELIVERY.interval_seconds + 1)) == 2
    assert [batch.id.number for batch in state.lose("a")] == [0, 1]


def test_only_what_did_not_arrive_is_sent_again() -> None:
    state = state_with(*range(3))
    state.credit(A, credit(3))
    state.deliveries(100.0)
    state.credit(A, credit(3, received=1))
    assert state.overdue(99.9 + DELIVERY.interval_seconds) == []
    assert numbers(state.overdue(100.1 + DELIVERY.interval_seconds)) == [(A, 2, 1), (A, 3, 2)]
    assert state.overdue(100.2 + DELIVERY.interval_seconds) == []
    state.credit(A, credit(3, received=2))
    assert numbers(state.overdue(100.2 + 2 * DELIVERY.interval_seconds)) == [(A, 3, 2)]
    assert state.resent_batches == 3
    # A repeat is no further delivery.
    assert (state.read_batches, state.read_examples) == (3, 6)


def test_a_dead_trainers_batches_wait_for_the_verdict() -> None:
    state = state_with(*range(5))
    state.credit(A, credit(1))
    state.credit(A1, credit(1))
    state.credit(B, credit(1))
    state.deliveries(0.0)
    assert [(batch.id, len(batch)) for batch in state.lose("a")] == [(batch_id(0), 2), (batch_id(1), 2)]
    assert state.outstanding(TRAINING) == 5
    assert state.queued == 2
    state.resolve_lost("a", [batch_id(1)])
    assert state.outstanding(TRAINING) == 4
    assert state.retained_bytes == 4 * size_of(make_batch(0))
    state.credit(B, credit(9))
    # What was returned goes first: it is the oldest.
    assert numbers(state.deliveries(0.0)) == [(B, 2, 1), (B, 3, 3), (B, 4, 4)]


def test_the_dead_are_not_served_again() -> None:
    state = state_with(0)
    state.lose("a")
    state.credit(A, credit(5))
    assert state.deliveries(0.0) == []
    assert state.lose("a") == []
    state.credit(b"ab/0", credit(5))
    assert numbers(state.deliveries(0.0)) == [(b"ab/0", 1, 0)]


def test_a_verdict_is_for_one_trainer() -> None:
    state = state_with(0, 1)
    state.credit(A, credit(1))
    state.credit(B, credit(1))
    state.deliveries(0.0)
    state.lose("a")
    state.lose("b")
    state.resolve_lost("a", [batch_id(0), batch_id(1)])
    assert state.queued == 1
    state.resolve_lost("b", [])
    assert state.queued == 1
    assert state.outstanding(TRAINING) == 1


def test_holding_stops_training_and_tells_each_workers_last_sequence() -> None:
    state = state_with(*range(4))
    state.credit(A, credit(2))
    state.credit(B, credit(1))
    state.deliveries(0.0)
    assert state.drain() == {"a/0": 2, "b/0": 1}
    state.credit(A, credit(9))
    assert state.deliveries(0.0) == []
    state.open_pass(1, ["a"])
    state.offer(1, make_batch(50))
    assert numbers(state.deliveries(0.0)) == [(A, 3, 50)]


def test_a_pass_goes_to_its_trainers_and_drops_the_older() -> None:
    state = DeliveryState(PLENTY)
    state.credit(A, credit(9))
    state.open_pass(1, ["b"])
    state.offer(1, make_batch(10))
    assert state.deliveries(0.0) == []
    state.open_pass(2, ["a"])
    state.offer(2, make_batch(20))
    state.offer(TRAINING, make_batch(0))
    assert numbers(state.deliveries(0.0)) == [(A, 1, 20), (A, 2, 0)]
    assert [state.outstanding(number) for number in (0, 1, 2)] == [1, 0, 1]
    # Evaluation is not counted as read.
    assert (state.read_batches, state.retained_bytes) == (1, 2 * size_of(make_batch(0)))


def test_a_dead_trainers_evaluation_goes_on_elsewhere_at_once() -> None:
    state = DeliveryState(PLENTY)
    state.credit(A, credit(9))
    state.credit(B, credit(9))
    state.open_pass(1, ["a", "b"])
    state.offer(1, make_batch(10))
    assert numbers(state.deliveries(0.0)) == [(A, 1, 10)]
    assert state.lose("a") == []
    assert numbers(state.deliveries(0.0)) == [(B, 1, 10)]
    assert state.outstanding(1) == 1


def test_the_parser_goes_on_while_few_wait_and_memory_is_left() -> None:
    size = size_of(make_batch(0))
    state = state_with(retain_bytes=3 * size)
    for number in range(3):
        assert state.needs_more(9)
        state.offer(TRAINING, make_batch(number))
    assert not state.needs_more(9)
    state.credit(A, credit(3))
    state.deliveries(0.0)
    # What was sent still takes memory, until it is done.
    assert not state.needs_more(9)
    state.credit(A, credit(3, received=3, done=1))
    assert state.needs_more(1)
    state.offer(TRAINING, make_batch(3))
    assert not state.needs_more(1)


@pytest.mark.parametrize(
    ("identity", "token"), [(b"abc/0", "abc"), (b"abc/12", "abc"), (b"abc", "abc"), (b"\xff/0", "\ufffd")]
)
def test_a_workers_identity_begins_with_its_trainers_token(identity: bytes, token: str) -> None:
    assert token_of(identity) == token


def test_held_out_batches_find_room_where_training_batches_wait() -> None:
    """A job that ends early is held in the middle of its input, and evaluated afterwards."""
    size = size_of(make_batch(0))
    state = state_with(0, 1, 2, 3, retain_bytes=4 * size)
    assert not state.needs_more(4)
    state.drain()
    assert state.needs_more(4)
    assert state.retained_bytes == 0
    # The parser may have had one at hand.
    state.offer(TRAINING, make_batch(4))
    assert state.queued == 0
    state.open_pass(7, ["a"])
    state.offer(7, make_batch(9))
    state.credit(A, credit(2))
    assert numbers(state.deliveries(0.0)) == [(A, 1, 9)]


def test_of_a_batch_that_is_replayed_the_replay_is_kept() -> None:
    """Its first delivery is trained, though this reader may not know it yet."""
    state = state_with(0)
    state.credit(A, credit(2))
    assert [one.replay for _, one in state.deliveries(0.0)] == [False]
    state.offer(TRAINING, replace(make_batch(0), replay=True))
    assert [one.replay for _, one in state.deliveries(0.0)] == [True]
    kept = state.retained_bytes
    (lost,) = state.lose("a")
    assert lost.replay
    assert state.retained_bytes == kept // 2
    state.resolve_lost("a", [batch_id(0)])
    state.credit(B, credit(1))
    assert [(identity, one.replay) for identity, one in state.deliveries(0.0)] == [(B, True)]
    state.credit(B, credit(1, received=1, done=1))
    assert state.retained_bytes == 0


def of_workers(out: list[tuple[bytes, Delivery]]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for identity, delivery in out:
        found.setdefault(identity, []).append(delivery.id.number)
    return found


def test_consecutive_batches_go_to_one_worker() -> None:
    state = state_with(*range(7), consecutive=3)
    state.credit(A, credit(2))
    state.credit(B, credit(9))
    assert of_workers(state.deliveries(0.0)) == {A: [0, 1], B: [3, 4, 5, 6]}
    # The third of A's turn waits for A, and the next turn has begun.
    state.credit(A, credit(9, received=2))
    for number in (7, 8, 9):
        state.offer(TRAINING, make_batch(number))
    assert of_workers(state.deliveries(0.0)) == {A: [2, 9], B: [7, 8]}
    apart = state_with(*range(7))
    apart.credit(A, credit(2))
    apart.credit(B, credit(9))
    assert of_workers(apart.deliveries(0.0)) == {A: [0, 2], B: [1, 3, 4, 5, 6]}, "the control"


def test_what_a_turn_reserves_is_no_reason_to_read_less() -> None:
    state = state_with(*range(4), consecutive=4)
    assert not state.needs_more(4)
    state.credit(A, credit(1))
    assert of_workers(state.deliveries(0.0)) == {A: [0]}
    assert state.queued == 3
    assert state.needs_more(1), "nobody else may have these"
    for number in range(4, 8):
        state.offer(TRAINING, make_batch(number))
    assert not state.needs_more(4)


def test_the_turn_of_a_dead_worker_goes_on_with_another() -> None:
    state = state_with(*range(6), consecutive=3)
    state.credit(A, credit(1))
    assert of_workers(state.deliveries(0.0)) == {A: [0]}
    (lost,) = state.lose("a")
    state.credit(B, credit(9))
    assert of_workers(state.deliveries(0.0)) == {B: [1, 2, 3, 4, 5]}
    state.resolve_lost("a", [lost.id])
    assert of_workers(state.deliveries(0.0)) == {B: [0]}


def test_batches_to_score_are_of_no_turn() -> None:
    state = state_with(0, 1, consecutive=2)
    state.open_pass(1, ["a", "b"])
    for number in (5, 6):
        state.offer(1, make_batch(number))
    state.credit(A, credit(1))
    assert of_workers(state.deliveries(0.0)) == {A: [0]}
    state.credit(B, credit(1))
    assert of_workers(state.deliveries(0.0)) == {B: [5]}


def test_what_is_left_of_an_abandoned_pass_stands_in_no_way() -> None:
    """Its only trainer is dead; its spans are still being cut, and its batches come back."""
    state = DeliveryState(PLENTY)
    state.open_pass(1, ["a"])
    state.offer(1, make_batch(0))
    state.credit(A, credit(1))
    state.deliveries(0.0)
    state.open_pass(2, ["b"])
    for number in range(1, 9):
        state.offer(1, make_batch(number))
    assert state.lose("a") == []
    assert (state.queued, state.outstanding(1), state.retained_bytes) == (0, 0, 0)
    assert state.needs_more(8)
    state.offer(2, make_batch(9))
    state.credit(B, credit(1))
    assert numbers(state.deliveries(0.0)) == [(B, 1, 9)]
