"""A worker's standing with one reader."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.nodes.worker.reader_client import GATHER_SECONDS, ReaderClient
from shadowsync.pipeline.wire.messages import Credit, Delivery
from shadowsync.pipeline.wire.retransmission import CREDIT
from shadowsync.tests.support.batches import batch_id
from shadowsync.tests.support.recording_connection import RecordedConnection


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
def outbox() -> RecordedConnection:
    return RecordedConnection()


@pytest.fixture
def line(outbox: RecordedConnection) -> ReaderClient:
    return ReaderClient("reader-0", outbox.connection, window=4)


def test_the_first_words_are_the_window(line: ReaderClient, outbox: RecordedConnection) -> None:
    line.send_credit(0.0)
    assert outbox.take() == [Credit(limit=4, received=0, done=0)]


def test_the_standing_is_told_when_it_changed_or_is_old(
    line: ReaderClient, outbox: RecordedConnection
) -> None:
    line.send_credit(100.0)
    outbox.take()
    line.send_credit(100.0 + CREDIT.interval_seconds / 2)
    assert outbox.take() == []
    line.accept(delivery(1))
    line.send_credit(100.0 + CREDIT.interval_seconds / 2)
    assert outbox.take() == [Credit(limit=4, received=1, done=0)]
    line.send_credit(100.0 + CREDIT.interval_seconds)
    assert outbox.take() == []
    line.send_credit(100.0 + CREDIT.interval_seconds * 1.5)
    assert outbox.take() == [Credit(limit=4, received=1, done=0)]


def test_more_may_come_when_one_is_processed_and_is_forgotten_when_finished(
    line: ReaderClient, outbox: RecordedConnection
) -> None:
    for sequence in (1, 2, 3):
        line.accept(delivery(sequence))
    line.mark_processed()
    line.mark_processed()
    line.mark_finished(2)
    line.send_credit(0.0)
    # The second is confirmed before the first: the reader must keep both.
    assert outbox.take() == [Credit(limit=6, received=3, done=0)]
    assert line.unfinished == 2
    line.mark_finished(1)
    line.send_credit(GATHER_SECONDS)
    assert outbox.take() == [Credit(limit=6, received=3, done=2)]
    assert line.unfinished == 1


def test_changes_are_told_together_until_they_are_worth_half_the_window(
    line: ReaderClient, outbox: RecordedConnection
) -> None:
    line.send_credit(100.0)
    outbox.take()
    line.accept(delivery(1))
    line.mark_processed()
    line.send_credit(100.001)
    assert outbox.take() == [], "three of four are here or may still come"
    line.accept(delivery(2))
    line.mark_processed()
    line.send_credit(100.002)
    assert outbox.take() == [Credit(limit=6, received=2, done=0)], "two may still come: more are asked for"
    line.accept(delivery(3))
    line.mark_finished(1)
    line.send_credit(100.003)
    assert outbox.take() == [], "it would let the reader send no more"
    line.mark_processed()
    line.send_credit(100.002 + GATHER_SECONDS / 2)
    assert outbox.take() == [], "three of four are here or may still come"
    line.send_credit(100.002 + 2 * GATHER_SECONDS)
    assert outbox.take() == [Credit(limit=7, received=3, done=1)], "long enough"


@given(st.integers(1, 9), st.lists(st.sampled_from(["arrive", "process", "tell"]), max_size=60))
def test_more_than_half_the_window_is_here_or_asked_for(window: int, events: list[str]) -> None:
    outbox = RecordedConnection()
    line = ReaderClient("reader-0", outbox.connection, window)
    came = processed = limit = 0
    for event in events:
        if event == "arrive" and came < limit:
            came += 1
            line.accept(delivery(came))
        elif event == "process" and processed < came:
            processed += 1
            line.mark_processed()
        line.send_credit(0.0)
        limit = max([limit, *(message.limit for message in outbox.take() if isinstance(message, Credit))])
        assert window / 2 < limit - processed <= window


def test_a_gap_is_not_received_until_it_is_filled(line: ReaderClient, outbox: RecordedConnection) -> None:
    assert line.accept(delivery(2))
    assert line.accept(delivery(4))
    assert (line.received, line.unfinished) == (0, 2)
    line.send_credit(0.0)
    assert outbox.take() == [Credit(limit=4, received=0, done=0)]
    assert line.accept(delivery(1))
    assert line.received == 2
    assert line.accept(delivery(3))
    assert (line.received, line.unfinished) == (4, 4)


@given(st.lists(st.integers(1, 12), max_size=60), st.lists(st.integers(1, 12), unique=True))
def test_each_delivery_is_taken_once(arriving: list[int], finishing: list[int]) -> None:
    line = ReaderClient("reader-0", RecordedConnection().connection, window=4)
    taken: set[int] = set()
    for sequence in arriving:
        assert line.accept(delivery(sequence)) is (sequence not in taken)
        taken.add(sequence)
    assert line.repeated_deliveries == len(arriving) - len(taken)
    assert line.received == next(n for n in range(14) if n + 1 not in taken)
    finished = [sequence for sequence in finishing if sequence in taken]
    for sequence in finished:
        line.mark_finished(sequence)
    assert line.unfinished == len(taken) - len(finished)
    # Late repeats of what is done are still known.
    for sequence in taken:
        assert not line.accept(delivery(sequence))
