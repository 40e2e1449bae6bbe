"""The center's first value: in chunks, once, and whole before anything is exchanged."""

from __future__ import annotations

import numpy as np
import pytest
from shadowsync.nodes.sync.center import CenterState
from shadowsync.pipeline.wire.center_messages import CenterSeed
from shadowsync.sync_algos.easgd import EASGD, ElasticOptions
from shadowsync.tests.support.sync.center_messages import START, chunks, exchange_of, floats, whole


def unseeded() -> CenterState:
    return CenterState(EASGD(ElasticOptions()).center_rule)


def test_the_first_value_comes_in_chunks_and_only_once() -> None:
    state, first = unseeded(), floats(7, 1)
    stop = START + 7
    for start, part in chunks(first, 3)[::-1]:
        assert not state.ready
        reply = state.seed(CenterSeed(5, START, stop, start, part))
        assert (reply.request, reply.start, reply.elements) == (5, start, 0)
    assert state.ready
    np.testing.assert_array_equal(whole(state), first)
    # A second trainer's seed, or a late repeat.
    state.seed(CenterSeed(6, START, stop, START, floats(7, 9)))
    np.testing.assert_array_equal(whole(state), first)


def test_a_first_value_that_is_not_finite_is_refused() -> None:
    state, first = unseeded(), floats(6, 1)
    wrong = first.copy()
    wrong[5] = np.nan
    with pytest.raises(ValueError, match="the 6 elements from 100 are not all finite"):
        state.seed(CenterSeed(1, START, START + 6, START, wrong))
    assert not state.ready
    state.seed(CenterSeed(2, START, START + 6, START, first))
    assert state.ready


def test_a_repeated_first_chunk_does_not_stand_for_another() -> None:
    state, first = unseeded(), floats(6, 1)
    for _ in range(3):
        state.seed(CenterSeed(1, START, START + 6, START, first[:3]))
        assert not state.ready
    with pytest.raises(ValueError, match="3 elements from 102 overlap"):
        state.seed(CenterSeed(1, START, START + 6, START + 2, first[2:5]))
    assert not state.ready
    state.seed(CenterSeed(1, START, START + 6, START + 3, first[3:]))
    np.testing.assert_array_equal(whole(state), first)


@pytest.mark.parametrize(("start", "stop"), [(5, 5), (6, 5), (-1, 5)])
def test_a_slice_that_is_none_is_refused(start: int, stop: int) -> None:
    state = unseeded()
    with pytest.raises(ValueError, match="invalid slice from"):
        state.seed(CenterSeed(1, start, stop, start, floats(1, 1)))


def test_a_slice_that_does_not_fit_into_memory_is_refused() -> None:
    state = unseeded()
    for stop in (2**50, 2**62):
        with pytest.raises(ValueError, match=f"a slice of {stop} elements does not fit into memory"):
            state.seed(CenterSeed(1, 0, stop, 0, floats(1, 1)))
    state.seed(CenterSeed(1, 0, 4, 0, floats(4, 1)))
    assert state.ready


def test_another_slice_than_the_first_is_refused() -> None:
    state = unseeded()
    state.seed(CenterSeed(1, 0, 6, 0, floats(3, 1)))
    with pytest.raises(ValueError, match="the slice differs from 0 to 6"):
        state.seed(CenterSeed(1, 0, 7, 3, floats(3, 1)))


def test_late_the_first_value_is_the_mean_of_whole_seeds() -> None:
    """A node in the place of a dead one: the replicas are all that is left of its slice."""
    state = unseeded()
    state.await_seeds()
    seeds = [floats(7, number) for number in range(3)]
    for number, values in enumerate(seeds):
        for start, part in chunks(values, 3):
            state.seed(CenterSeed(1, START, START + 7, start, part), b"%d/shadow" % number)
            # A repeat, whose answer was lost.
            state.seed(CenterSeed(1, START, START + 7, start, part), b"%d/shadow" % number)
    half, part = chunks(floats(7, 9), 3)[0]
    state.seed(CenterSeed(1, START, START + 7, half, part), b"9/shadow")
    assert not state.ready
    with pytest.raises(ValueError, match="no initial value yet"):
        state.exchange(b"0/shadow", exchange_of(2, START, floats(7, 1)))
    assert state.seed_mean() == 3
    np.testing.assert_allclose(whole(state), np.mean(seeds, axis=0), rtol=1e-6)
    # One that comes too late.
    state.seed(CenterSeed(3, START, START + 7, START, floats(7, 9)), b"9/shadow")
    np.testing.assert_allclose(whole(state), np.mean(seeds, axis=0), rtol=1e-6)


def test_of_an_attempt_in_which_not_all_came_no_seed_is_left() -> None:
    """The trainers seed once more, with what they have by then."""
    state = unseeded()
    state.await_seeds()
    state.seed(CenterSeed(1, START, START + 7, START, floats(7, 1)), b"0/shadow")
    half, part = chunks(floats(7, 2), 3)[0]
    state.seed(CenterSeed(1, START, START + 7, half, part), b"1/shadow")
    state.await_seeds()
    seeds = [floats(7, number) for number in (3, 4)]
    for number, values in enumerate(seeds):
        state.seed(CenterSeed(2, START, START + 7, START, values), b"%d/shadow" % number)
    assert state.seed_mean() == 2
    np.testing.assert_allclose(whole(state), np.mean(seeds, axis=0), rtol=1e-6)


def test_late_without_a_seed_there_is_no_center() -> None:
    state = unseeded()
    state.await_seeds()
    assert state.seed_mean() == 0
    assert not state.ready


def test_one_that_comes_back_keeps_its_slice_and_begins_exchanges_anew() -> None:
    state, first = unseeded(), floats(7, 1)
    state.seed(CenterSeed(1, START, START + 7, START, first))
    (reply,) = state.exchange(b"0/shadow", exchange_of(5, START, floats(7, 2)))
    kept = whole(state)
    assert state.exchange(b"0/shadow", exchange_of(1, START, floats(7, 3))) == [], "the control: it is old"
    state.await_seeds()
    state.seed(CenterSeed(2, START, START + 7, START, floats(7, 9)), b"0/shadow")
    state.seed_mean()
    np.testing.assert_array_equal(whole(state), kept)
    # A trainer's new connection counts from one.
    (again,) = state.exchange(b"0/shadow", exchange_of(1, START, floats(7, 3)))
    assert (reply.request, again.request) == (5, 1)
