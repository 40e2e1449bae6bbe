"""The ledger: spans out, batches in, and what comes back from the dead."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.nodes.ledger_state import LedgerState
from shadowsync.pipeline.data.batch import BatchId
from shadowsync.pipeline.data.spans import Span, span_order
from shadowsync.tests.support.batches import batch_id

SEED = 1


def spans(count: int) -> list[Span]:
    return [Span(number, f"part-{number}.tsv", "bytes", 0, 100) for number in range(count)]


def ledger(count: int = 1, epochs: int = 1, *, granted: bool = True) -> LedgerState:
    state = LedgerState(spans(count), epochs=epochs, seed=SEED, shuffled=False)
    while granted and state.grant("reader-0") is not None:
        pass
    return state


def read(state: LedgerState, batches: int, *, epoch: int = 0, span: int = 0, bad_rows: int = 0) -> None:
    """A span of so many batches of 10 examples was read."""
    state.span_read(epoch, span, batches=batches, examples=10 * batches, bad_rows=bad_rows)


@pytest.mark.parametrize("shuffled", [False, True])
def test_every_span_of_every_epoch_is_granted_once_and_in_order(shuffled: bool) -> None:
    state = LedgerState(spans(7), epochs=3, seed=SEED, shuffled=shuffled)
    granted = []
    while (grant := state.grant("reader-0")) is not None:
        granted.append((grant[0], grant[1].number))
    wanted = [(epoch, n) for epoch in range(3) for n in span_order(7, epoch, SEED, shuffled)]
    assert granted == wanted
    assert sorted(granted) == [(epoch, n) for epoch in range(3) for n in range(7)]
    assert state.grant("reader-0") is None
    assert (granted == sorted(granted)) is not shuffled


def test_it_is_complete_when_all_is_granted_read_and_trained() -> None:
    state = ledger(2, granted=False)
    assert not state.complete
    state.grant("reader-0")
    read(state, 2, span=0)
    for number in range(2):
        assert not state.complete
        state.acknowledge("trainer-0", batch_id(number), 10)
    # The first span is done and the second was not even handed out.
    assert not state.complete
    state.grant("reader-1")
    state.acknowledge("trainer-0", batch_id(0, span=1), 10)
    assert not state.complete
    read(state, 1, span=1)
    assert state.complete


def test_a_span_without_batches_is_complete_when_read() -> None:
    state = ledger()
    assert not state.complete
    state.span_read(0, 0, batches=0, examples=0, bad_rows=5)
    assert state.complete
    assert state.totals.bad_rows == 5


def test_a_repeated_acknowledgement_is_replayed() -> None:
    state = ledger()
    assert not state.acknowledge("trainer-0", batch_id(0), 10).repeated
    assert state.acknowledge("trainer-1", batch_id(0), 10).repeated
    read(state, 2)
    assert not state.complete
    state.acknowledge("trainer-1", batch_id(1), 10)
    assert state.complete
    assert state.acknowledge("trainer-1", batch_id(1), 10).repeated
    assert state.complete
    totals = state.totals
    assert (totals.trained_examples, totals.trained_batches) == (40, 4)
    assert (totals.distinct_examples, totals.distinct_batches) == (20, 2)
    assert totals.replayed_examples == 20
    assert state.trained_batches_of == {"trainer-0": 1, "trainer-1": 3}
    assert state.trained_examples_of == {"trainer-0": 10, "trainer-1": 30}


def test_the_dead_return_what_is_not_acknowledged() -> None:
    state = ledger()
    read(state, 3)
    state.acknowledge("trainer-0", batch_id(1), 10)
    again = state.return_batches([(batch_id(n), 10) for n in range(3)])
    assert again == [batch_id(0), batch_id(2)]
    assert (state.totals.returned_batches, state.totals.returned_examples) == (2, 20)
    for batch in again:
        assert not state.complete
        state.acknowledge("trainer-1", batch, 10)
    assert state.complete
    # A second trainer dies with what is trained by now.
    assert state.return_batches([(batch_id(0), 10)]) == []
    assert state.totals.returned_examples == 20


def test_the_same_numbers_of_another_epoch_are_other_batches() -> None:
    state = ledger(epochs=2)
    state.acknowledge("trainer-0", batch_id(0, epoch=0), 10)
    assert not state.acknowledge("trainer-0", batch_id(0, epoch=1), 10).repeated
    assert state.totals.distinct_batches == 2


@pytest.mark.parametrize(
    ("batch", "examples", "why"),
    [
        (batch_id(0, seed=2), 10, "is of seed 2; this job's is 1"),
        (batch_id(0, span=9), 10, "span 9 of epoch 0 was not handed out"),
        (batch_id(0, epoch=1), 10, "span 0 of epoch 1 was not handed out"),
        (batch_id(2), 10, "is none of its span"),
        (batch_id(0), 0, "is none of its span"),
        (batch_id(0), -1, "is none of its span"),
    ],
)
def test_a_strangers_batch_changes_nothing(batch: BatchId, examples: int, why: str) -> None:
    state = ledger()
    read(state, 2)
    with pytest.raises(ValueError, match=why):
        state.acknowledge("trainer-0", batch, examples)
    assert state.totals.trained_batches == 0
    assert state.trained_batches_of == {}
    if batch.span or batch.epoch:
        with pytest.raises(ValueError, match="was not handed out"):
            state.return_batches([(batch, examples)])


def test_a_span_is_read_once_and_only_if_handed_out() -> None:
    state = ledger()
    with pytest.raises(ValueError, match="span 1 of epoch 0 was not handed out"):
        read(state, 1, span=1)
    read(state, 1)
    with pytest.raises(ValueError, match="was read before"):
        read(state, 1)
    assert state.totals.parsed_examples == 10


def test_a_span_cannot_have_fewer_batches_than_were_trained_of_it() -> None:
    state = ledger()
    state.acknowledge("trainer-0", batch_id(0), 10)
    state.acknowledge("trainer-0", batch_id(5), 10)
    # Two batches, and two are trained; but one of them is none of the two.
    with pytest.raises(ValueError, match="batch 5 of span 0 of epoch 0 was trained, and it has 2"):
        read(state, 2)
    assert not state.complete
    assert state.totals.parsed_examples == 0
    read(state, 6)
    assert not state.complete


def test_a_misread_span_is_named() -> None:
    state = ledger(2)
    read(state, 2, span=0)
    read(state, 2, span=1)
    for span in range(2):
        for number in range(2):
            state.acknowledge("trainer-0", batch_id(number, span=span), 10 if span == 0 else 9 + number)
    assert state.complete
    assert state.misread_spans() == ["span 1 of epoch 0: 19 of 20 examples"]


def test_an_unfinished_span_is_not_misread() -> None:
    state = ledger()
    state.acknowledge("trainer-0", batch_id(0), 7)
    assert state.misread_spans() == []
    read(state, 2)
    assert state.misread_spans() == []


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 3)), max_size=60),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), unique=True, max_size=6),
)
def test_the_sums_are_those_of_plain_sets(
    acknowledged: list[tuple[int, int, int]], read_early: list[tuple[int, int]]
) -> None:
    state, plain = ledger(3, epochs=2), set[tuple[int, int, int]]()
    for epoch, span in read_early:
        read(state, 4, epoch=epoch, span=span)
    for epoch, span, number in acknowledged:
        told = state.acknowledge("trainer-0", batch_id(number, epoch=epoch, span=span), 10)
        assert told.repeated is ((epoch, span, number) in plain)
        plain.add((epoch, span, number))
    for epoch in range(2):
        for span in range(3):
            if (epoch, span) not in read_early:
                read(state, 4, epoch=epoch, span=span)
    totals = state.totals
    assert totals.distinct_batches == len(plain)
    assert totals.trained_examples == totals.distinct_examples + totals.replayed_examples
    assert totals.trained_batches == len(acknowledged)
    assert state.complete is (len(plain) == 24)
    everything = [(batch_id(n, epoch=e, span=s), 10) for e in range(2) for s in range(3) for n in range(4)]
    again = state.return_batches(everything)
    assert len(again) == 24 - len(plain)
    for batch in again:
        state.acknowledge("trainer-1", batch, 10)
    assert state.complete
    assert state.misread_spans() == []
