"""The ledger: spans out, batches in, and what comes back from the dead."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.nodes.coordinator.ledger.ledger import LedgerState
from shadowsync.pipeline.data.batches.span_plan import span_order
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.types import BatchId
from shadowsync.tests.support.data.batches import batch_id

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


def test_epochs_are_complete_in_order() -> None:
    state = ledger(2, epochs=3)
    done = [state.complete_epochs]
    for epoch, span in ((0, 0), (1, 1), (1, 0), (0, 1), (2, 0)):
        read(state, 1, epoch=epoch, span=span)
        state.acknowledge("trainer-0", batch_id(0, epoch=epoch, span=span), 10)
        done.append(state.complete_epochs)
    # The second is done before the first; both are when the first is.
    assert done == [0, 0, 0, 0, 2, 2]
    again = LedgerState(spans(2), epochs=3, seed=SEED, shuffled=False, restored=state.saved())
    assert again.complete_epochs == 2


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
    assert totals.trained_examples == 40
    assert (totals.distinct_examples, totals.distinct_batches) == (20, 2)
    assert totals.replayed_examples == 20
    assert state.trained_batches_of == {"trainer-0": 1, "trainer-1": 3}
    assert state.trained_examples_of == {"trainer-0": 10, "trainer-1": 30}


def test_the_dead_return_what_is_not_acknowledged() -> None:
    state = ledger()
    read(state, 3)
    state.acknowledge("trainer-0", batch_id(1), 10)
    again = state.return_batches("trainer-0", [(batch_id(n), 10) for n in range(3)])
    assert again == [batch_id(0), batch_id(2)]
    assert (state.totals.returned_batches, state.totals.returned_examples) == (2, 20)
    for batch in again:
        assert not state.complete
        state.acknowledge("trainer-1", batch, 10)
    assert state.complete
    # A second trainer dies with what is trained by now.
    assert state.return_batches("trainer-0", [(batch_id(0), 10)]) == []
    assert state.totals.returned_examples == 20


@pytest.mark.parametrize(
    ("batch", "examples", "why"),
    [
        (batch_id(0, seed=2), 10, "has seed 2; this job's is 1"),
        (batch_id(0, span=9), 10, "span 9 of epoch 0 was not handed out"),
        (batch_id(0, epoch=1), 10, "span 0 of epoch 1 was not handed out"),
        (batch_id(0), 0, "with 0 examples"),
        (batch_id(0), -1, "with -1 examples"),
    ],
)
def test_a_strangers_batch_changes_nothing(batch: BatchId, examples: int, why: str) -> None:
    state = ledger()
    read(state, 2)
    with pytest.raises(ValueError, match=why):
        state.acknowledge("trainer-0", batch, examples)
    with pytest.raises(ValueError, match=why):
        state.leave_out("trainer-0", batch, examples, "why")
    assert (state.totals.trained_examples, state.totals.left_out_batches) == (0, 0)
    assert state.trained_batches_of == {}
    if batch.span or batch.epoch:
        with pytest.raises(ValueError, match="was not handed out"):
            state.return_batches("trainer-0", [(batch, examples)])


def test_a_span_is_read_once_and_only_if_handed_out() -> None:
    state = ledger()
    with pytest.raises(ValueError, match="span 1 of epoch 0 was not handed out"):
        read(state, 1, span=1)
    read(state, 1)
    with pytest.raises(ValueError, match="was already reported as read"):
        read(state, 1)
    assert state.totals.parsed_examples == 10


def test_a_number_that_a_dead_reader_made_up_costs_no_other_reader() -> None:
    state = ledger(1)
    state.acknowledge("trainer-0", batch_id(0), 10)
    state.acknowledge("trainer-0", batch_id(10**9), 10)
    with pytest.raises(ValueError, match="has 2 batches, but its batch 1000000000 was trained"):
        read(state, 2)
    state.lose_reader("reader-0")
    state.read_again("reader-0")
    assert state.grant("reader-1") is not None
    read(state, 2)
    assert not state.complete
    state.acknowledge("trainer-0", batch_id(1), 10)
    assert state.complete
    totals = state.totals
    assert (totals.trained_examples, totals.distinct_examples, totals.replayed_examples) == (30, 20, 10)
    assert (totals.distinct_batches, totals.stray_batches, totals.parsed_examples) == (2, 1, 20)
    assert state.misread_spans() == []


def test_a_span_cannot_have_fewer_batches_than_were_trained_of_it() -> None:
    state = ledger()
    state.acknowledge("trainer-0", batch_id(0), 10)
    state.acknowledge("trainer-0", batch_id(5), 10)
    # Two batches, and two are trained; but one of them is none of the two.
    with pytest.raises(ValueError, match="span 0 of epoch 0 has 2 batches, but its batch 5 was trained"):
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
        reported = state.acknowledge("trainer-0", batch_id(number, epoch=epoch, span=span), 10)
        assert reported.repeated is ((epoch, span, number) in plain)
        plain.add((epoch, span, number))
    for epoch in range(2):
        for span in range(3):
            if (epoch, span) not in read_early:
                read(state, 4, epoch=epoch, span=span)
    totals = state.totals
    assert totals.distinct_batches == len(plain)
    assert totals.trained_examples == totals.distinct_examples + totals.replayed_examples
    assert totals.trained_examples == 10 * len(acknowledged)
    assert state.complete is (len(plain) == 24)
    everything = [(batch_id(n, epoch=e, span=s), 10) for e in range(2) for s in range(3) for n in range(4)]
    again = state.return_batches("trainer-0", everything)
    assert len(again) == 24 - len(plain)
    for batch in again:
        state.acknowledge("trainer-1", batch, 10)
    assert state.complete
    assert state.misread_spans() == []


def going_on(state: LedgerState, count: int = 2, epochs: int = 1) -> LedgerState:
    """A ledger that goes on with what another has."""
    return LedgerState(spans(count), epochs=epochs, seed=SEED, shuffled=False, restored=state.saved())


def test_what_was_trained_is_not_handed_out_again() -> None:
    first = ledger(2)
    read(first, 2, span=0)
    for number in range(2):
        first.acknowledge("trainer-0", batch_id(number), 10)
    first.acknowledge("trainer-0", batch_id(3, span=1), 10)
    second = going_on(first)
    assert (second.restored_batches, second.restored_examples) == (3, 30)
    grant = second.grant("reader-0")
    assert grant is not None
    assert grant[1].number == 1
    assert second.grant("reader-0") is None
    assert second.skip_of(0, 1) == [3]
    # The reader cuts all four, and sends three.
    read(second, 4, span=1)
    assert second.missing_batches() == 3
    for number in range(3):
        assert not second.complete
        second.acknowledge("trainer-0", batch_id(number, span=1), 10)
    assert second.complete
    assert second.misread_spans() == []
    assert second.totals.parsed_examples == second.totals.distinct_examples == 30
    assert second.examples_so_far == 60
    delivery = "reader-0", 0, 4
    assert second.acknowledge("trainer-0", batch_id(3, span=1), 10, delivery).repeated
    assert second.totals.distinct_examples == 30
    (wrong,) = second.take_wrong_deliveries()
    assert (wrong.reader, wrong.trainer) == ("reader-0", "trainer-0")
    assert "was trained by the run that this one resumes" in wrong.why
    # And once more: nothing is left.
    assert going_on(second).complete
    assert not going_on(second, epochs=2).complete


def test_a_batch_beyond_the_end_of_a_span_that_goes_on_is_noticed() -> None:
    first = ledger(1)
    first.acknowledge("trainer-0", batch_id(5), 10)
    second = going_on(first, 1)
    second.grant("reader-0")
    with pytest.raises(ValueError, match="span 0 of epoch 0 has 4 batches, but its batch 5 was trained"):
        read(second, 4)


@given(st.data())
@settings(max_examples=60)
def test_stopped_anywhere_any_number_of_times_every_batch_is_trained_once(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    epochs = data.draw(st.integers(1, 2))
    trained: list[tuple[int, int, int]] = []
    state = LedgerState(spans(len(sizes)), epochs=epochs, seed=SEED, shuffled=False)
    for last in (False, False, True):
        queue: list[tuple[int, int, int]] = []
        ends = 10**6 if last else data.draw(st.integers(0, 6))
        while (grant := state.grant("reader-0")) is not None:
            epoch, span = grant
            skip = state.skip_of(epoch, span.number)
            if last or data.draw(st.booleans()):
                read(state, sizes[span.number], epoch=epoch, span=span.number)
            queue += [(epoch, span.number, n) for n in range(sizes[span.number]) if n not in skip]
        for epoch, number, batch in queue[:ends]:
            state.acknowledge("trainer-0", batch_id(batch, span=number, epoch=epoch), 10)
            trained.append((epoch, number, batch))
        if not last:
            state = LedgerState(
                spans(len(sizes)), epochs=epochs, seed=SEED, shuffled=False, restored=state.saved()
            )
    assert state.complete
    wanted = [(e, s, n) for e in range(epochs) for s, size in enumerate(sizes) for n in range(size)]
    assert sorted(trained) == wanted


def test_what_a_resumed_run_had_of_a_span_counts_before_it_is_handed_out_again() -> None:
    state = ledger(2)
    for number in range(2):
        state.acknowledge("trainer-0", batch_id(number), 10)
        state.acknowledge("trainer-0", batch_id(number, span=1), 10)
    read(state, 2, span=1)
    second = going_on(state)
    assert second.trained_in({0, 1}) == 40
    assert second.trained_in({0}) == 20
    # Once, also when it is handed out.
    second.grant("reader-0")
    assert second.trained_in({0}) == 20


def test_what_is_left_out_is_settled_and_not_trained() -> None:
    state = ledger()
    read(state, 3)
    state.acknowledge("trainer-0", batch_id(0), 10)
    row = state.leave_out("trainer-1", batch_id(1), 10, "why")
    assert (row.id, row.examples, row.trainer, row.why) == (batch_id(1), 10, "trainer-1", "why")
    assert state.missing_batches() == 1
    assert state.return_batches("trainer-0", [(batch_id(n), 10) for n in range(3)]) == [batch_id(2)]
    assert not state.complete
    state.leave_out("trainer-0", batch_id(2), 10, "why")
    assert state.complete
    assert state.misread_spans() == []
    totals = state.totals
    assert (totals.distinct_examples, totals.untrained_examples, totals.left_out_examples) == (10, 20, 20)
    assert (totals.distinct_batches, totals.left_out_batches) == (1, 2)
    assert state.left_out_examples_of == {"trainer-0": 10, "trainer-1": 10}
    assert state.trained_in({0}) == state.examples_so_far == 10
    assert [state.has(batch_id(n)) for n in range(3)] == [True, False, False]
    # The same one again, by a trainer that was thought dead: another delivery, and no other batch.
    state.leave_out("trainer-1", batch_id(1), 10, "why")
    assert (totals.left_out_examples, totals.untrained_examples) == (30, 20)
    # To another trainer, with other weights, it was finite: it is trained after all.
    assert not state.acknowledge("trainer-1", batch_id(1), 10).repeated
    assert (totals.distinct_examples, totals.untrained_examples, totals.left_out_examples) == (20, 10, 30)
    state.leave_out("trainer-0", batch_id(1), 10, "why")
    assert (totals.distinct_examples, totals.untrained_examples, totals.left_out_examples) == (20, 10, 40)
    assert state.complete


def test_what_a_reader_must_not_deliver_is_counted_and_the_reader_noted() -> None:
    first = ledger()
    first.leave_out("trainer-0", batch_id(1), 10, "why")
    state = going_on(first, 1)
    state.grant("reader-0")
    read(state, 3)
    sequences = itertools.count(1)
    state.acknowledge("t", batch_id(0), 10, ("reader-0", 1, next(sequences)))
    assert state.take_wrong_deliveries() == []
    for settle in (
        lambda batch: state.leave_out("t", batch, 10, "why", ("reader-0", 1, next(sequences))),
        lambda batch: state.acknowledge("t", batch, 10, ("reader-0", 1, next(sequences))),
    ):
        for batch, why in (
            (batch_id(0), "was delivered before"),
            (batch_id(1), "was left out by the run that this one resumes"),
            (batch_id(3), "is not in its span, which has 3 batches"),
        ):
            settle(batch)
            (wrong,) = state.take_wrong_deliveries()
            assert (wrong.reader, wrong.trainer) == ("reader-0", "t")
            assert why in wrong.why
    totals = state.totals
    assert (totals.trained_examples, totals.distinct_examples, totals.replayed_examples) == (40, 10, 30)
    assert (totals.repeated_batches, totals.stray_batches, totals.untrained_examples) == (4, 2, 0)
    assert not state.complete
    state.acknowledge("t", batch_id(2), 10, ("reader-0", 1, next(sequences)))
    assert state.complete


def test_a_batch_that_was_left_out_and_comes_again_is_its_readers() -> None:
    state = ledger()
    state.leave_out("t", batch_id(0), 10, "why", ("reader-0", 0, 1))
    assert not state.acknowledge("t", batch_id(0), 10, ("reader-0", 0, 2)).repeated
    (wrong,) = state.take_wrong_deliveries()
    assert "was delivered before" in wrong.why


def test_the_reader_of_a_delivery_is_noted_whoever_has_the_span_now() -> None:
    state = ledger(1)
    state.acknowledge("t", batch_id(0), 10, ("reader-0", 0, 1))
    state.lose_reader("reader-0")
    state.read_again("reader-0")
    assert state.grant("reader-1") is not None
    assert state.acknowledge("u", batch_id(0), 10, ("reader-0", 0, 1)).repeated
    assert [(wrong.reader, wrong.trainer) for wrong in state.take_wrong_deliveries()] == [("reader-0", "u")]


def test_a_batch_that_is_owed_comes_again_and_nobody_is_noted() -> None:
    state = ledger()
    read(state, 1)
    state.acknowledge("t", batch_id(0), 10, ("reader-0", 0, 1))
    state.owed.owe((0, 0), [0])
    assert state.grant_replay("reader-0") is not None
    assert state.acknowledge("t", batch_id(0), 10, ("reader-0", 0, 2)).repeated
    assert state.take_wrong_deliveries() == []
    # Once more, and it is owed no longer.
    state.acknowledge("t", batch_id(0), 10, ("reader-0", 0, 3))
    assert len(state.take_wrong_deliveries()) == 1
    assert state.totals.repeated_batches == 1


@given(st.data())
@settings(max_examples=100)
def test_whatever_is_left_out_the_ledger_adds_up_over_all_runs(data: st.DataObject) -> None:
    """Batches are trained, left out, told twice and returned, in any order, and the job is resumed twice."""
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    trained: set[tuple[int, int]] = set()
    bad: set[tuple[int, int]] = set()
    state = LedgerState(spans(len(sizes)), epochs=1, seed=SEED, shuffled=False)
    for last in (False, False, True):
        deliveries = returned = 0
        queue: list[tuple[int, int]] = []
        while (grant := state.grant("reader-0")) is not None:
            span = grant[1].number
            skip = state.skip_of(0, span)
            assert skip == sorted(n for s, n in trained | bad if s == span)
            read(state, sizes[span], span=span)
            queue += [(span, n) for n in range(sizes[span]) if n not in skip]
        queue += [one for one in queue if data.draw(st.booleans())]
        for span, number in queue if last else queue[: data.draw(st.integers(0, len(queue)))]:
            batch = batch_id(number, span=span)
            deliveries += 1
            what = data.draw(st.sampled_from(["train", "leave out", "return", "return"]))
            if what == "return" and state.return_batches("trainer-0", [(batch, 10)]):
                returned += 1
                deliveries += 1
                what = data.draw(st.sampled_from(["train", "leave out"]))
            elif what == "return":
                deliveries -= 1
                continue
            if what == "train":
                state.acknowledge("trainer-0", batch, 10)
                trained.add((span, number))
                bad.discard((span, number))
            else:
                state.leave_out("trainer-0", batch, 10, "why")
                bad |= {(span, number)} - trained
        totals = state.totals
        assert 10 * deliveries == totals.trained_examples + totals.left_out_examples + 10 * returned
        assert totals.returned_examples == 10 * returned
        saved = state.saved()
        assert saved.batches == len(trained)
        assert {(s, n) for (_, s), some in saved.left_out.items() for n in some} == bad
        if not last:
            state = LedgerState(spans(len(sizes)), epochs=1, seed=SEED, shuffled=False, restored=saved)
    assert state.complete
    assert state.misread_spans() == []
    assert len(trained | bad) == sum(sizes)
    assert state.totals.parsed_examples == state.totals.distinct_examples + state.totals.untrained_examples
    assert going_on(state, len(sizes)).complete
