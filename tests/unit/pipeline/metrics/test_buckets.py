"""Sums over a growing axis in a bounded number of buckets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.metrics.buckets import Buckets

EVENTS = st.lists(st.tuples(st.floats(0, 5000), st.integers(-5, 5), st.integers(0, 9)), max_size=80)


@given(EVENTS, st.sampled_from([2, 4, 10]))
def test_they_are_the_sums_of_the_last_width(events: list[tuple[float, int, int]], limit: int) -> None:
    buckets = Buckets(0.5, 2, limit=limit)
    for position, one, other in events:
        buckets.add(position, one, other)
    reported = buckets.sums()
    assert len(reported) <= limit
    assert [end for end, _ in reported] == [buckets.width * (at + 1) for at in range(len(reported))]
    for at, (end, sums) in enumerate(reported):
        inside = [event for event in events if at * buckets.width <= event[0] < end]
        assert sums == [sum(event[1] for event in inside), sum(event[2] for event in inside)]
    # None lies beyond the last, and they are no wider than they need to be.
    reach = max((event[0] for event in events), default=0.0)
    assert all(event[0] < buckets.width * limit for event in events)
    assert buckets.width == 0.5 or buckets.width * limit / 2 <= reach


def test_neighbours_are_joined_when_all_are_taken() -> None:
    buckets = Buckets(1.0, 1, limit=4)
    for position in range(4):
        buckets.add(position, 10**position)
    assert buckets.sums() == [(1.0, [1]), (2.0, [10]), (3.0, [100]), (4.0, [1000])]
    buckets.add(4.0, 7)
    assert buckets.width == 2.0
    assert buckets.sums() == [(2.0, [11]), (4.0, [1100]), (6.0, [7])]


def test_what_is_told_is_a_copy() -> None:
    buckets = Buckets(1.0, 1)
    buckets.add(0.0, 1)
    buckets.sums()[0][1][0] = 99.0
    assert buckets.sums() == [(1.0, [1])]
