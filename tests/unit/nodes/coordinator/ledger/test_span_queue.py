"""The spans that are still to be handed out, also where more come while the job trains."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.nodes.coordinator.ledger.ledger import LedgerState
from shadowsync.nodes.coordinator.ledger.span_queue import SpanQueue
from shadowsync.pipeline.checkpoint.saved_ledger import SavedLedger, SavedSpan
from shadowsync.pipeline.data.batches.span_plan import span_order
from shadowsync.pipeline.data.span import Span
from shadowsync.tests.support.data.batches import batch_id

SEED = 1


def spans(start: int, stop: int) -> list[Span]:
    return [Span(number, f"part-{number}.tsv", "bytes", 0, 100) for number in range(start, stop)]


def followed(
    count: int, *, shuffled: bool = False, complete: frozenset[tuple[int, int]] = frozenset()
) -> SpanQueue:
    return SpanQueue(spans(0, count), epochs=1, seed=SEED, shuffled=shuffled, complete=complete, follows=True)


@given(st.integers(0, 5), st.lists(st.integers(0, 4), max_size=5), st.data())
def test_each_span_is_handed_out_once_whenever_it_is_added(
    first: int, added: list[int], data: st.DataObject
) -> None:
    queue = followed(first, shuffled=True)
    handed_out: list[int] = []

    def take(most: int) -> None:
        for _ in range(most):
            if (found := queue.pop()) is not None:
                assert found[0] == 0
                handed_out.append(found[1].number)

    for count in added:
        take(data.draw(st.integers(0, 6)))
        queue.add(spans(len(queue), len(queue) + count))
        assert not queue.is_exhausted
    queue.end()
    take(len(queue))
    assert queue.is_exhausted
    # Those of the plan in its order, and then the others in that of their coming.
    assert handed_out == [*span_order(first, 0, SEED, shuffled=True), *range(first, len(queue))]
    assert [span.number for span in queue.spans] == list(range(len(queue)))


def test_without_following_it_is_exhausted_when_it_is_empty() -> None:
    queue = SpanQueue(spans(0, 1), epochs=2, seed=SEED, shuffled=False)
    assert [queue.pop(), queue.pop(), queue.pop()] == [(0, queue[0]), (1, queue[0]), None]
    assert queue.is_exhausted
    with pytest.raises(ValueError, match="cannot be added"):
        queue.add(spans(1, 2))


def test_an_empty_queue_that_follows_waits_for_more() -> None:
    queue = followed(0)
    assert queue.pop() is None
    assert queue.is_empty
    assert not queue.is_exhausted
    queue.add(spans(0, 1))
    assert not queue.is_empty
    queue.end()
    assert not queue.is_exhausted
    assert queue.pop() == (0, queue[0])
    assert queue.is_exhausted
    with pytest.raises(ValueError, match="cannot be added"):
        queue.add(spans(1, 2))


@pytest.mark.parametrize(("start", "stop"), [(1, 2), (3, 4), (0, 1)])
def test_numbers_must_go_on(start: int, stop: int) -> None:
    queue = followed(2)
    with pytest.raises(ValueError, match="cannot be added after 2 spans"):
        queue.add(spans(start, stop))
    queue.add(spans(2, 3))


def test_what_a_resumed_run_has_trained_is_not_handed_out() -> None:
    queue = followed(2, complete=frozenset({(0, 0), (0, 3)}))
    queue.add(spans(2, 5))
    queue.end()
    found = []
    while (one := queue.pop()) is not None:
        found.append(one[1].number)
    assert found == [1, 2, 4]


def test_a_ledger_is_complete_only_when_the_input_has_ended() -> None:
    ledger = LedgerState(spans(0, 1), epochs=1, seed=SEED, shuffled=False, follows=True)
    assert ledger.grant("reader-0") is not None
    ledger.acknowledge("trainer-0", batch_id(0), 10)
    ledger.span_read(0, 0, batches=1, examples=10, bad_rows=0)
    assert not ledger.complete
    assert ledger.complete_epochs == 0
    assert ledger.missing_batches() == 0
    ledger.queue.add(spans(1, 2))
    assert ledger.missing_batches() is None
    ledger.queue.end()
    assert not ledger.complete
    assert ledger.grant("reader-0") is not None
    ledger.acknowledge("trainer-0", batch_id(0, span=1), 10)
    ledger.span_read(0, 1, batches=1, examples=10, bad_rows=0)
    assert ledger.complete
    assert ledger.complete_epochs == 1


def test_a_ledger_that_follows_goes_on_with_a_saved_one() -> None:
    saved = SavedLedger(SEED, complete={(0, 0): SavedSpan(1, 10, 0)})
    ledger = LedgerState(spans(0, 2), epochs=1, seed=SEED, shuffled=False, follows=True, restored=saved)
    granted = ledger.grant("reader-0")
    assert granted is not None
    assert granted[1].number == 1
    assert ledger.grant("reader-0") is None
