"""What the ledger keeps of each trained batch: as much as a dict, in little memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from shadowsync.nodes.coordinator.ledger.batch_sizes import BatchSizes
from shadowsync.nodes.coordinator.ledger.ledger import LedgerState
from shadowsync.pipeline.data.span import Span
from shadowsync.tests.support.data.batches import batch_id

BATCHES = 1000


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from([5, 7]))))
def test_it_is_as_a_dict_to_which_each_is_added_once(added: list[tuple[int, int]]) -> None:
    sizes, like = BatchSizes(), dict[int, int]()
    for number, examples in added:
        sizes.add(number, examples)
        like.setdefault(number, examples)
        assert list(sizes.items()) == sorted(like.items())
        assert list(sizes) == sorted(like)
        assert len(sizes) == len(like)
        assert [number in sizes for number in range(-1, 14)] == [number in like for number in range(-1, 14)]


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from([5, 7]))), st.integers(0, 13))
def test_a_cut_removes_what_comes_from_a_number_on(added: list[tuple[int, int]], stop: int) -> None:
    sizes, like = BatchSizes(), dict[int, int]()
    for number, examples in added:
        sizes.add(number, examples)
        like.setdefault(number, examples)
    assert sorted(sizes.cut(stop)) == sorted((number, of) for number, of in like.items() if number >= stop)
    left = {number: of for number, of in like.items() if number < stop}
    assert (list(sizes.items()), len(sizes)) == (sorted(left.items()), len(left))
    sizes.add(12, 9)
    assert (12 in sizes, len(sizes)) == (True, len(left | {12: 9}))


def test_memory_grows_with_gaps_and_not_with_batches() -> None:
    sizes = BatchSizes()
    for number in range(0, BATCHES, 2):
        sizes.add(number, 8)
    assert sizes.runs == BATCHES // 2, "the control"
    for number in range(1, BATCHES, 2):
        sizes.add(number, 8)
    sizes.add(BATCHES, 3)
    assert sizes.runs == 2
    assert len(sizes) == BATCHES + 1


def test_a_span_that_is_trained_takes_hardly_more_than_one_of_a_batch() -> None:
    ledger = LedgerState([Span(0, "x", "bytes", 0, 100)], epochs=1, seed=1, shuffled=False)
    ledger.grant("reader-0")
    ledger.span_read(0, 0, batches=BATCHES, examples=8 * BATCHES - 5, bad_rows=0)
    # Two trainers have them in turns.
    for number in sorted(range(BATCHES), key=lambda number: (number // 4, -number % 4)):
        ledger.acknowledge("trainer-0", batch_id(number), 3 if number == BATCHES - 1 else 8)
    assert ledger.complete
    assert ledger.misread_spans() == []
    assert isinstance(done := ledger._open[0, 0].done, BatchSizes)
    assert done.runs == 2
