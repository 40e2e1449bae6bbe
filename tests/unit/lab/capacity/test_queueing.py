"""The formulas of closed networks, against closed forms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.lab.capacity.queueing import (
    closed_network,
    core_share,
    lock_cycle_seconds,
    paced_cycle_seconds,
    private_and_shared,
)

SECONDS = st.floats(0.001, 10.0)
FEW = settings(max_examples=30)


@FEW
@given(demand=SECONDS, stations=st.integers(1, 6), customers=st.integers(1, 40))
def test_a_balanced_network_has_a_closed_form(demand: float, stations: int, customers: int) -> None:
    """With n customers at k equal stations the throughput is n / (n + k - 1) of one station's."""
    found = closed_network([demand] * stations, customers)
    assert found.throughput * demand == pytest.approx(customers / (customers + stations - 1))
    assert sum(found.queues) == pytest.approx(customers)


@FEW
@given(demand=SECONDS, think=SECONDS, customers=st.integers(1, 30))
def test_one_station_is_the_machine_repairman_s(demand: float, think: float, customers: int) -> None:
    """With the blocking probability of Erlang: the station is idle if all customers think."""
    found = closed_network([demand], customers, think)
    ratio = demand / think
    terms = [math.perm(customers, waiting) * ratio**waiting for waiting in range(customers + 1)]
    assert found.throughput == pytest.approx((1.0 - 1.0 / sum(terms)) / demand, rel=1e-6)


@FEW
@given(
    demands=st.lists(SECONDS, min_size=1, max_size=4),
    think=st.floats(0.0, 10.0),
    customers=st.integers(1, 50),
)
def test_throughput_keeps_the_bounds_of_operational_analysis(
    demands: list[float], think: float, customers: int
) -> None:
    found = closed_network(demands, customers, think).throughput
    whole = sum(demands) + think
    assert found <= min(1.0 / max(demands), customers / whole) * (1 + 1e-9)
    assert found >= customers / (think + customers * sum(demands)) * (1 - 1e-9)


@FEW
@given(private=SECONDS, shared=SECONDS, customers=st.integers(1, 6), think=st.floats(0.0, 5.0))
def test_a_single_class_is_a_closed_network(
    private: float, shared: float, customers: int, think: float
) -> None:
    """To the few per cent by which the approximation of Bard and Schweitzer is off."""
    exact = closed_network([private, shared], customers, think).throughput
    found = private_and_shared(private, [shared], 1, customers, think).throughput
    assert found == pytest.approx(exact, rel=0.08)


@FEW
@given(private=SECONDS, shared=SECONDS, classes=st.integers(1, 50), customers=st.integers(1, 6))
def test_all_classes_together_keep_the_bounds(
    private: float, shared: float, classes: int, customers: int
) -> None:
    of_one = private_and_shared(private, [shared], classes, customers).throughput
    assert of_one <= 1.0 / private * (1 + 1e-6)
    assert classes * of_one <= 1.0 / shared * (1 + 1e-6)
    more = private_and_shared(private, [shared], classes, customers + 1).throughput
    assert more >= of_one * (1 - 1e-6), "more batches in flight hide more of the wait"


def test_without_batches_in_flight_each_wait_counts_in_full() -> None:
    waiting = private_and_shared(0.01, [0.005], 1, 1).throughput
    hidden = private_and_shared(0.01, [0.005], 1, 4).throughput
    assert waiting == pytest.approx(1 / 0.015)
    assert hidden > 0.9 / 0.01


def test_threads_share_a_lock_until_it_is_taken_all_the_time() -> None:
    assert lock_cycle_seconds(0.009, 0.0, 4) == 0.009
    assert lock_cycle_seconds(0.009, 0.001, 1) == pytest.approx(0.010)
    assert lock_cycle_seconds(0.0, 0.01, 5) == pytest.approx(0.05), "nobody computes beside another"
    taken = [threads / lock_cycle_seconds(0.009, 0.001, threads) * 0.001 for threads in (1, 5, 20, 200)]
    assert taken == sorted(taken)
    assert taken[-1] == pytest.approx(1.0, rel=1e-6)


@FEW
@given(demand=SECONDS, delay=SECONDS, least=SECONDS, customers=st.integers(1, 30))
def test_rounds_keep_to_their_pace_where_the_stations_allow_it(
    demand: float, delay: float, least: float, customers: int
) -> None:
    found = paced_cycle_seconds([demand], customers, delay, least)
    busiest = customers / closed_network([demand], customers, delay).throughput
    assert found == pytest.approx(max(least, busiest), rel=1e-6)
    assert found >= customers * demand * (1 - 1e-9), "a full station sets the pace"


@pytest.mark.parametrize(("customers", "demands"), [(0, [1.0]), (1, [])])
def test_a_network_without_customers_or_work_is_refused(customers: int, demands: list[float]) -> None:
    with pytest.raises(ValueError, match=r"at least 1 is needed|no throughput"):
        closed_network(demands, customers)


@FEW
@given(cores=st.integers(1, 16), more=st.integers(0, 8), load=st.floats(0.0, 0.9))
def test_busy_threads_get_what_the_others_leave(cores: int, more: int, load: float) -> None:
    """As many as there are cores: none is ever idle, so all of the work is done."""
    busy = cores + more
    share = core_share(busy, cores, load * cores)
    assert busy * share + load * cores == pytest.approx(cores, rel=1e-3)


def test_a_busy_thread_beside_a_free_core_waits_only_at_times() -> None:
    shares = [core_share(1, 2, load) for load in (0.0, 0.5, 1.0, 1.5)]
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)
    # As measured: a worker beside others that need a whole core got 0.72 of its own.
    assert shares[2] == pytest.approx(0.75, abs=0.01)
    assert core_share(1, 20, 1.0) > 0.999, "the control: cores enough"
    assert core_share(0.0, 2, 1.0) == 1.0
