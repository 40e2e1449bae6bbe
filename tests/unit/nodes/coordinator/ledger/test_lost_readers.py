"""What the ledger does when a reader dies: its unfinished spans are read again, each batch trained once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.nodes.coordinator.ledger.ledger import LedgerState
from shadowsync.nodes.coordinator.ledger.records import UnreadSpan
from shadowsync.pipeline.checkpoint.saved_ledger import SavedLedger
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.types import BatchId
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.expected import present

EXAMPLES = 10


def _ledger(spans: int = 1) -> LedgerState:
    plan = [Span(number, f"part-{number}.tsv", "bytes", 0, 100) for number in range(spans)]
    return LedgerState(plan, epochs=1, seed=1, shuffled=False)


def _read(state: LedgerState, batches: int, span: int = 0, bad_rows: int = 0) -> None:
    state.span_read(0, span, batches=batches, examples=EXAMPLES * batches, bad_rows=bad_rows)


def test_it_is_handed_out_again_without_what_is_settled() -> None:
    state = _ledger(2)
    state.grant("reader-0")
    state.acknowledge("trainer-0", batch_id(1), EXAMPLES)
    state.leave_out("trainer-0", batch_id(2), EXAMPLES, "why")
    assert state.lose_reader("reader-0") == []
    assert state.has_lost_spans
    first = present(state.grant("reader-1"))
    assert first[1].number == 1, "not before its trainers have nothing of it any more"
    assert state.read_again("reader-0") == [(0, 0)]
    again = present(state.grant("reader-1"))
    assert again[1].number == 0
    assert state.skip_of(0, 0) == [1, 2]
    assert state.grant("reader-1") is None


def test_what_was_cut_is_as_if_it_had_not_been() -> None:
    state = _ledger()
    state.grant("reader-0")
    _read(state, 3, bad_rows=2)
    state.acknowledge("trainer-0", batch_id(0), EXAMPLES)
    assert state.lose_reader("reader-0") == [UnreadSpan(0, 3 * EXAMPLES)]
    assert (state.totals.parsed_examples, state.totals.bad_rows) == (0, 0)
    assert state.missing_batches() is None
    state.read_again("reader-0")
    state.grant("reader-1")
    _read(state, 3, bad_rows=2)
    assert (state.totals.parsed_examples, state.totals.bad_rows) == (3 * EXAMPLES, 2)
    assert state.missing_batches() == 2
    assert (state.spans_read_of["reader-0"], state.spans_read_of["reader-1"]) == (1, 1)


def test_a_resumed_run_knows_of_all_examples_beside_the_bad_rows_of_a_span() -> None:
    """The bad rows of a span are counted whole, so their share must be of all of its rows."""
    plan = [Span(0, "part-0.tsv", "bytes", 0, 100)]
    restored = SavedLedger(1, {}, {(0, 0): {0: EXAMPLES, 1: EXAMPLES}}, {})
    state = LedgerState(plan, epochs=1, seed=1, shuffled=False, restored=restored)
    state.grant("reader-0")
    _read(state, 3, bad_rows=2)
    assert (state.totals.parsed_examples, state.totals.restored_of_read_spans) == (EXAMPLES, 2 * EXAMPLES)
    state.lose_reader("reader-0")
    assert (state.totals.bad_rows, state.totals.restored_of_read_spans) == (0, 0)


def test_negatives_that_were_left_out_are_counted_with_their_span() -> None:
    state = _ledger()
    state.grant("reader-0")
    state.span_read(0, 0, batches=3, examples=3 * EXAMPLES, bad_rows=0, dropped_negatives=70)
    assert (state.totals.parsed_examples, state.totals.dropped_negatives) == (3 * EXAMPLES, 70)
    state.lose_reader("reader-0")
    assert state.totals.dropped_negatives == 0, "they are counted when the span is read again"


def test_a_complete_span_stays() -> None:
    state = _ledger()
    state.grant("reader-0")
    _read(state, 1)
    state.acknowledge("trainer-0", batch_id(0), EXAMPLES)
    assert state.lose_reader("reader-0") == []
    assert not state.has_lost_spans
    assert state.read_again("reader-0") == []
    assert state.complete


@st.composite
def _histories(draw: st.DrawFn) -> tuple[list[int], list[str]]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    steps = st.sampled_from(["grant", "grant", "cut", "deliver", "deliver", "train", "train", "die"])
    return sizes, draw(st.lists(steps, max_size=60))


def _play(sizes: list[int], steps: list[str], *, barrier: bool) -> LedgerState:
    """One reader at a time; one that dies is followed by another. Then everything is read and trained.

    With `barrier` its spans are handed out again once the trainer has trained what it has.
    """
    state, reader = _ledger(len(sizes)), 0
    to_send: list[tuple[int, int]] = []
    uncut: list[int] = []
    held: list[BatchId] = []

    def train() -> None:
        if held:
            state.acknowledge("trainer-0", held.pop(0), EXAMPLES)

    for step in [*steps, *["die"], *["grant", "cut"] * len(sizes), *["deliver", "train"] * sum(sizes)]:
        name = f"reader-{reader}"
        if step == "grant" and (grant := state.grant(name)) is not None:
            span = grant[1].number
            skip = state.skip_of(0, span)
            to_send += [(span, number) for number in range(sizes[span]) if number not in skip]
            uncut.append(span)
        elif step == "cut" and uncut:
            span = uncut.pop()
            _read(state, sizes[span], span)
        elif step == "deliver" and to_send:
            span, number = to_send.pop(0)
            held.append(batch_id(number, span=span))
        elif step == "train":
            train()
        elif step == "die":
            state.lose_reader(name)
            while barrier and held:
                train()
            state.read_again(name)
            to_send.clear()
            uncut.clear()
            reader += 1
    while held:
        train()
    return state


@given(_histories())
@settings(max_examples=200)
def test_however_often_readers_die_each_batch_is_trained_once(history: tuple[list[int], list[str]]) -> None:
    sizes, steps = history
    state = _play(sizes, steps, barrier=True)
    assert state.complete
    assert state.totals.distinct_batches == sum(sizes)
    assert state.totals.replayed_examples == 0
    assert state.totals.parsed_examples == state.totals.distinct_examples
    assert state.misread_spans() == []


def test_without_the_barrier_a_batch_is_trained_twice() -> None:
    """The control: its span is handed out while the trainer still has a batch of it."""
    steps = ["grant", "deliver", "die"]
    assert _play([2], steps, barrier=True).totals.replayed_examples == 0
    assert _play([2], steps, barrier=False).totals.replayed_examples == EXAMPLES


def test_deliveries_are_counted_for_the_reader_that_had_the_span() -> None:
    state = _ledger()
    state.grant("reader-0")
    state.acknowledge("trainer-0", batch_id(0), EXAMPLES)
    state.return_batches("trainer-1", [(batch_id(1), EXAMPLES)])
    state.lose_reader("reader-0")
    state.acknowledge("trainer-0", batch_id(2), EXAMPLES)
    assert state.reread_batches == 0
    state.read_again("reader-0")
    state.grant("reader-1")
    state.acknowledge("trainer-0", batch_id(1), EXAMPLES)
    assert state.known_deliveries("reader-0", "trainer-0") == 2 * EXAMPLES
    assert state.known_deliveries("reader-0", "trainer-1") == EXAMPLES
    assert state.known_deliveries("reader-1", "trainer-0") == EXAMPLES
    assert state.reread_batches == 1


def test_a_span_that_waits_for_a_reader_was_read_by_none() -> None:
    state = _ledger()
    state.grant("reader-0")
    state.lose_reader("reader-0")
    state.read_again("reader-0")
    with pytest.raises(ValueError, match="span 0 of epoch 0 is not assigned to a reader"):
        _read(state, 1)
