"""When what was not answered is sent again, on a clock of the test's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.wire.rpc.retransmission import (
    ATTACH,
    CENTER_TIMES,
    CONTROL,
    CREDIT,
    DELIVERY,
    LOOKUP,
    PEER_TIMES,
    RetransmitPolicy,
)


def sendings(policy: RetransmitPolicy, seconds: float, step: float) -> list[float]:
    """When a question that nobody answers is sent, by one who looks every `step`."""
    sent, now = [0.0], 0.0
    while now < seconds:
        now += step
        if policy.due(sent[-1], now):
            sent.append(now)
    return sent


def test_it_is_due_after_the_interval_and_again_after_another() -> None:
    assert sendings(RetransmitPolicy(3.0), 10.0, 0.5) == [0.0, 3.0, 6.0, 9.0]
    assert sendings(RetransmitPolicy(3.0), 10.0, 2.0) == [0.0, 4.0, 8.0]


@given(st.floats(0.01, 100), st.floats(0, 1000), st.floats(0, 1000))
def test_what_is_due_has_no_time_left(interval: float, since: float, passed: float) -> None:
    policy = RetransmitPolicy(interval)
    now = since + passed
    left = policy.left_seconds(since, now)
    assert 0 <= left <= interval * 1.001
    # As near as floats tell: a timer may come a little early, and is then set once more.
    assert policy.due(since, now + left + 1e-9 * (1 + now))
    assert policy.due(since, now) == (now - since >= interval)


@pytest.mark.parametrize(("times", "repeats"), [(CENTER_TIMES, 1), (PEER_TIMES, 3)])
def test_a_timeout_has_a_bounded_number_of_repeats(times: int, repeats: int) -> None:
    policy = RetransmitPolicy.in_timeout(10.0, times)
    assert len([at for at in sendings(policy, 10.0, 0.125) if 0 < at < 10.0]) == repeats


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_an_interval_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="must be more than 0"):
        RetransmitPolicy(seconds)


def test_the_intervals_fit_into_the_silence_of_a_dead_node() -> None:
    node_timeout_seconds = 15.0
    assert all(
        3 * one.interval_seconds < node_timeout_seconds for one in (CONTROL, LOOKUP, DELIVERY, CREDIT, ATTACH)
    )
