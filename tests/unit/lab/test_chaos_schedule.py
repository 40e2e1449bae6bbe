"""Which role gets a fault when: a function of the seed, in which every role has its share."""

from __future__ import annotations

from collections import Counter

import pytest
from shadowsync.lab.chaos.schedule import FIRST_SHARE, LAST_SHARE, schedule

COUNTS = {"reader": 1, "trainer": 2, "embedding": 2, "sync": 0, "coordinator": 1}


def test_the_same_seed_injects_alike_and_another_does_not() -> None:
    assert schedule(40, 7, COUNTS, 5.0) == schedule(40, 7, COUNTS, 5.0)
    assert schedule(40, 7, COUNTS, 5.0) != schedule(40, 8, COUNTS, 5.0)


@pytest.mark.parametrize("kills", [1, 2, 37, 200])
def test_as_many_as_are_wanted_and_each_role_in_turn(kills: int) -> None:
    jobs = schedule(kills, 1, COUNTS, 5.0)
    faults = [fault for job in jobs for fault in job]
    assert len(faults) == kills
    assert all(1 <= len(job) <= 2 for job in jobs)
    roles = Counter(fault.role for fault in faults)
    assert set(roles) <= set(COUNTS) - {"sync"}
    assert max(roles.values()) - min(roles.get(role, 0) for role in COUNTS if COUNTS[role]) <= 1
    assert all(FIRST_SHARE <= fault.after <= LAST_SHARE for fault in faults)


def test_some_come_two_at_once_and_some_only_stop() -> None:
    jobs = schedule(200, 1, COUNTS, 5.0)
    assert any(len(job) == 2 for job in jobs)
    assert all(job[0].after == job[1].after for job in jobs if len(job) == 2)
    stops = [fault.stop_seconds for job in jobs for fault in job if fault.stop_seconds]
    assert stops
    assert all(1.0 <= seconds <= 5.0 for seconds in stops)
    assert not any(fault.stop_seconds for job in schedule(200, 1, COUNTS, 0.0) for fault in job)


def test_a_fault_is_said_in_words() -> None:
    (job,) = schedule(1, 1, {"reader": 1}, 0.0)
    assert str(job[0]).startswith("reader killed after ")
