"""A worker's standing with one reader."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.nodes.worker.reader_client import GATHER_SECONDS, ReaderClient
from shadowsync.pipeline.wire.messages import Credit, Delivery
from shadowsync.pipeline.wire.rpc.retransmission import CREDIT
from shadowsync.tests.support.coordinator.recording_connection import RecordedConnection
from shadowsync.tests.support.data.batches import batch_id


def delivery(sequence: int) -> Delivery:
    return Delivery(
        sequence=sequence,
        pass_number=0,
        id=batch_id(sequence),
        labels=np.zeros(1, np.float32),
        dense=np.zeros((1, 1), np.float32),
        rows=np.zeros((1, 1), np.int32),
    )


@pytest.fixture
def recorded() -> RecordedConnection:
    return RecordedConnection()


@pytest.fixture
def client(recorded: RecordedConnection) -> ReaderClient:
    return ReaderClient("reader-0", recorded.connection, window=4)


def test_the_first_credit_is_the_window(client: ReaderClient, recorded: RecordedConnection) -> None:
    client.send_credit(0.0)
    assert recorded.take() == [Credit(limit=4, received=0, done=0)]


def test_credit_is_sent_when_it_changed_or_is_old(client: ReaderClient, recorded: RecordedConnection) -> None:
    client.send_credit(100.0)
    recorded.take()
    client.send_credit(100.0 + CREDIT.interval_seconds / 2)
    assert recorded.take() == []
    client.accept(delivery(1))
    client.send_credit(100.0 + CREDIT.interval_seconds / 2)
    assert recorded.take() == [Credit(limit=4, received=1, done=0)]
    client.send_credit(100.0 + CREDIT.interval_seconds)
    assert recorded.take() == []
    client.send_credit(100.0 + CREDIT.interval_seconds * 1.5)
    assert recorded.take() == [Credit(limit=4, received=1, done=0)]


def test_more_may_come_when_one_is_processed_and_is_forgotten_when_finished(
    client: ReaderClient, recorded: RecordedConnection
) -> None:
    for sequence in (1, 2, 3):
        client.accept(delivery(sequence))
    client.mark_processed()
    client.mark_processed()
    client.mark_finished(2)
    client.send_credit(0.0)
    # The second is confirmed before the first: the reader must keep both.
    assert recorded.take() == [Credit(limit=6, received=3, done=0)]
    assert client.unfinished == 2
    client.mark_finished(1)
    client.send_credit(GATHER_SECONDS)
    assert recorded.take() == [Credit(limit=6, received=3, done=2)]
    assert client.unfinished == 1


def test_changes_are_told_together_until_they_are_worth_half_the_window(
    client: ReaderClient, recorded: RecordedConnection
) -> None:
    client.send_credit(100.0)
    recorded.take()
    client.accept(delivery(1))
    client.mark_processed()
    client.send_credit(100.001)
    assert recorded.take() == [], "three of four are here or may still come"
    client.accept(delivery(2))
    client.mark_processed()
    client.send_credit(100.002)
    assert recorded.take() == [Credit(limit=6, received=2, done=0)], "two may still come: more are asked for"
    client.accept(delivery(3))
    client.mark_finished(1)
    client.send_credit(100.003)
    assert recorded.take() == [], "it would let the reader send no more"
    client.mark_processed()
    client.send_credit(100.002 + GATHER_SECONDS / 2)
    assert recorded.take() == [], "three of four are here or may still come"
    client.send_credit(100.002 + 2 * GATHER_SECONDS)
    assert recorded.take() == [Credit(limit=7, received=3, done=1)], "long enough"


@given(st.integers(1, 9), st.lists(st.sampled_from(["arrive", "process", "tell"]), max_size=60))
def test_more_than_half_the_window_is_here_or_asked_for(window: int, events: list[str]) -> None:
    recorded = RecordedConnection()
    client = ReaderClient("reader-0", recorded.connection, window)
    came = processed = limit = 0
    for event in events:
        if event == "arrive" and came < limit:
            came += 1
            client.accept(delivery(came))
        elif event == "process" and processed < came:
            processed += 1
            client.mark_processed()
        client.send_credit(0.0)
        limit = max([limit, *(message.limit for message in recorded.take() if isinstance(message, Credit))])
        assert window / 2 < limit - processed <= window


def test_a_gap_is_not_received_until_it_is_filled(client: ReaderClient, recorded: RecordedConnection) -> None:
    assert client.accept(delivery(2))
    assert client.accept(delivery(4))
    assert (client.received, client.unfinished) == (0, 2)
    client.send_credit(0.0)
    assert recorded.take() == [Credit(limit=4, received=0, done=0)]
    assert client.accept(delivery(1))
    assert client.received == 2
    assert client.accept(delivery(3))
    assert (client.received, client.unfinished) == (4, 4)


@given(st.lists(st.integers(1, 12), max_size=60), st.lists(st.integers(1, 12), unique=True))
def test_each_delivery_is_taken_once(arriving: list[int], finishing: list[int]) -> None:
    client = ReaderClient("reader-0", RecordedConnection().connection, window=4)
    taken: set[int] = set()
    for sequence in arriving:
        assert client.accept(delivery(sequence)) is (sequence not in taken)
        taken.add(sequence)
    assert client.repeated_deliveries == len(arriving) - len(taken)
    assert client.received == next(n for n in range(14) if n + 1 not in taken)
    finished = [sequence for sequence in finishing if sequence in taken]
    for sequence in finished:
        client.mark_finished(sequence)
    assert client.unfinished == len(taken) - len(finished)
    # Late repeats of what is done are still known.
    for sequence in taken:
        assert not client.accept(delivery(sequence))


def test_what_comes_after_the_end_of_training_is_dropped_and_not_counted(client: ReaderClient) -> None:
    assert client.accept(delivery(1))
    client.end_training()
    assert not client.accept(delivery(2))
    assert (client.training_examples, client.received, client.unfinished) == (1, 2, 1)
