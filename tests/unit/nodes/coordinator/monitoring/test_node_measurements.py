"""What grew between two answers, and how far clocks are apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from shadowsync.nodes.coordinator.monitoring.profiler import NodeClocks, RoleReply, measurements_between
from shadowsync.pipeline.wire.control.profile import MeasureReply


def role_reply(clock: float, **changes: Any) -> RoleReply:
    """Of a trainer whose counts are a thousand times its clock."""
    standard = MeasureReply(
        clock=clock,
        machine="here",
        cores=2,
        counts={"cpu_seconds": clock / 2, "trained_examples": int(1000 * clock)},
        threads={"worker-0": (clock / 4, clock / 8)},
        sampled={"wakes": 25 * clock, "locked_wakes": 5 * clock, "stalled_seconds": clock / 10},
    )
    return RoleReply("trainer", replace(standard, **changes))


def reply(clock: float, machine: str) -> MeasureReply:
    return role_reply(clock, machine=machine).reply


def test_what_grew_is_per_node_and_by_its_own_clock() -> None:
    (node,) = measurements_between({"trainer-0": role_reply(100.0)}, {"trainer-0": role_reply(104.0)})
    assert (node.name, node.role, node.seconds, node.cpu_seconds) == ("trainer-0", "trainer", 4.0, 2.0)
    assert node.counts == {"cpu_seconds": 2.0, "trained_examples": 4000.0}
    assert node.stalled_share == pytest.approx(0.1)
    assert node.locked_share == pytest.approx(0.2)
    assert node.threads["worker-0"].cpu_seconds == 1.0
    assert node.threads["worker-0"].core_wait_seconds == 0.5


def test_a_node_that_answered_once_is_left_out() -> None:
    first, last = (
        {"a": role_reply(1.0), "gone": role_reply(1.0)},
        {"a": role_reply(2.0), "new": role_reply(2.0)},
    )
    assert [node.name for node in measurements_between(first, last)] == ["a"]
    assert measurements_between(first, first) == []


def test_a_thread_and_a_count_that_came_later_began_at_nothing() -> None:
    before = role_reply(1.0, threads={}, counts={"cpu_seconds": 0.5})
    (node,) = measurements_between({"a": before}, {"a": role_reply(2.0)})
    assert node.threads["worker-0"].cpu_seconds == 0.5
    assert node.count("trained_examples") == 2000.0


def test_clocks_are_as_far_apart_as_the_shortest_way_says() -> None:
    clocks = NodeClocks("here")
    # Ahead by 50 s. The long way is 1 s there and back, the short one 0.02 s.
    clocks.record("a", reply(150.9, "there"), 100.0, 101.0)
    assert clocks.offset_seconds("a") == pytest.approx(50.4)
    assert clocks.error_seconds == pytest.approx(0.5)
    clocks.record("a", reply(152.01, "there"), 102.0, 102.02)
    clocks.record("a", reply(153.9, "there"), 103.0, 104.0)
    assert clocks.offset_seconds("a") == pytest.approx(50.0)
    assert clocks.error_seconds == pytest.approx(0.01)


def test_processes_of_one_kernel_read_one_clock() -> None:
    clocks = NodeClocks("here")
    clocks.record("a", reply(100.9, "here"), 100.0, 101.0)
    assert (clocks.offset_seconds("a"), clocks.error_seconds) == (0.0, 0.0)
