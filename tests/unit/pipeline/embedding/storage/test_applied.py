"""The set of batches that a shard applied."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from shadowsync.pipeline.embedding.storage.applied import AppliedBatches
from shadowsync.pipeline.errors import CheckpointError
from shadowsync.pipeline.types import BatchId
from shadowsync.tests.support.data.batches import batch_id

IDS = st.builds(BatchId, st.integers(0, 1), st.integers(0, 2), st.integers(0, 12), st.integers(3, 4))


@given(st.lists(IDS, max_size=80), st.lists(IDS, max_size=10))
def test_it_is_the_set_that_it_stands_for(added: list[BatchId], asked: list[BatchId]) -> None:
    applied, plain, repeats = AppliedBatches(), set[BatchId](), 0
    for batch in added:
        assert applied.add(batch) is (batch not in plain)
        repeats += batch in plain
        plain.add(batch)
        assert batch in applied
    assert applied.repeats == repeats
    assert len(applied) == len(plain)
    for batch in asked:
        assert (batch in applied) is (batch in plain)
    counts: dict[tuple[int, int], int] = {}
    for batch in plain:
        counts[batch.epoch, batch.span] = counts.get((batch.epoch, batch.span), 0) + 1
    assert applied.counts() == counts
    # As few ranges as can be: one for each number whose predecessor is absent.
    assert applied.ranges == sum(batch._replace(number=batch.number - 1) not in plain for batch in plain)


@given(st.lists(IDS, max_size=60), st.lists(IDS, max_size=60))
def test_it_survives_a_checkpoint(before: list[BatchId], after: list[BatchId]) -> None:
    applied = AppliedBatches()
    for batch in before:
        applied.add(batch)
    restored = AppliedBatches.from_array(applied.to_array())
    assert restored.repeats == 0
    assert len(restored) == len(applied)
    assert [restored.add(batch) for batch in after] == [applied.add(batch) for batch in after]
    np.testing.assert_array_equal(restored.to_array(), applied.to_array())


def test_the_largest_number_that_may_come_can_be_saved() -> None:
    largest = BatchId.from_wire([0, 0, 2**63 - 2, 1])
    applied = AppliedBatches()
    applied.add(largest)
    assert largest in AppliedBatches.from_array(applied.to_array())
    with pytest.raises(ValueError, match="batch number 9223372036854775807 is too large"):
        BatchId.from_wire([0, 0, 2**63 - 1, 1])


def test_memory_is_a_range_a_span_and_one_a_gap() -> None:
    applied = AppliedBatches()
    for number in range(10_000):
        # Pairs come swapped: a window of one out of order.
        assert applied.add(BatchId(0, 0, number ^ 1, 1))
        assert applied.ranges <= 2
    assert applied.to_array().tolist() == [[0, 0, 1, 0, 10_000]]
    assert applied.add(BatchId(0, 0, 2**40, 1))
    assert applied.ranges == 2


def test_an_empty_set_is_an_empty_array() -> None:
    array = AppliedBatches().to_array()
    assert array.shape == (0, 5)
    assert array.dtype == np.int64
    assert len(AppliedBatches.from_array(array)) == 0


@pytest.mark.parametrize(
    "records",
    [
        [[0, 0, 1, 5, 5]],
        [[0, 0, 1, -1, 5]],
        [[-1, 0, 1, 0, 5]],
        [[0, 0, 1, 0, 5], [0, 0, 1, 4, 9]],
        [[0, 0, 1, 0, 5], [0, 0, 1, 5, 9]],
        [[0, 0, 1, 6, 9], [0, 0, 1, 0, 5]],
    ],
)
def test_an_array_that_is_no_set_is_refused(records: list[list[int]]) -> None:
    with pytest.raises(CheckpointError, match="not ascending ranges"):
        AppliedBatches.from_array(np.array(records, np.int64))


@pytest.mark.parametrize(
    "array", [np.zeros((1, 4), np.int64), np.zeros(5, np.int64), np.zeros((1, 5), np.int32)]
)
def test_an_array_of_another_shape_or_type_is_refused(array: NDArray[Any]) -> None:
    with pytest.raises(CheckpointError, match=r"not int64 \[N, 5\]"):
        AppliedBatches.from_array(array)


@given(st.sets(st.integers(0, 30)), st.integers(0, 30), st.integers(0, 31))
def test_what_it_lacks_of_a_range(numbers: set[int], start: int, length: int) -> None:
    applied = AppliedBatches()
    for number in numbers:
        applied.add(batch_id(number))
    stop = start + length
    found = applied.lacking(batch_id(start), stop)
    assert [n for first, end in found for n in range(first, end)] == sorted({*range(start, stop)} - numbers)
    assert all(end < later for (_, end), (later, _) in pairwise(found)), "not more ranges than there are gaps"
    # Of another span it has none.
    assert applied.lacking(batch_id(start, span=1), stop) == ([(start, stop)] if length else [])
