"""Trainers that are late for long are named once; in a job that nothing disturbs nobody is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from shadowsync.nodes.control.late_trainers import LateTrainers
from shadowsync.pipeline.report.lateness import LONG_SECONDS, WAITED_SECONDS
from shadowsync.pipeline.report.merged_work import merged_counts

NAMES = ("trainer-0", "trainer-1", "trainer-2")


def waits(of: str, late: float) -> Callable[[float], dict[str, Any]]:
    """What a trainer counts whose rounds wait for trainer-2 for this share of the time, a little for all."""
    return lambda now: {
        WAITED_SECONDS + name: now * (late if name == "trainer-2" else 0.05) for name in NAMES if name != of
    }


def merges(late: float) -> Callable[[float], dict[str, Any]]:
    """What a sync node counts, with ten merges a second, to which trainer-2 comes late."""

    def counts(now: float) -> dict[str, Any]:
        merged = int(10 * now)
        found: dict[str, Any] = {"merges": merged}
        for name in NAMES:
            share = late if name == "trainer-2" else 0.05
            missed = int(share * merged)
            found |= merged_counts(
                name, 64 * merged, merged - missed, missed_merges=missed, late_seconds=share * now
            )
        return found

    return counts


def told(nodes: dict[str, Callable[[float], dict[str, Any]]], seconds: int, living: Any = NAMES) -> list[str]:
    late, said = LateTrainers(), []
    for now in range(seconds):
        for node, counts in nodes.items():
            said += [f"{name}: {what}" for name, what in late.heard(node, counts(now), living, now).items()]
    return said


def trainers(late: float) -> dict[str, Callable[[float], dict[str, Any]]]:
    return {name: waits(name, late) for name in NAMES}


def test_one_that_rounds_wait_for_is_told_once() -> None:
    (said,) = told(trainers(0.4), 200)
    assert said.startswith("trainer-2: rounds waited for it for 12 s of 30 s; look at its machine or link")


def test_one_whose_work_comes_late_is_told_once() -> None:
    (said,) = told({"sync-0": merges(0.7), "sync-1": merges(0.5)}, 200)
    assert said == (
        "trainer-2: its work reaches the model late: it was in 90 of 300 merges, and late for 21 s of 30 s; "
        "look at its machine or link"
    )


@pytest.mark.parametrize("late", [0.05, 0.09, 0.19])
def test_in_time_or_late_for_less_nobody_is_told(late: float) -> None:
    assert told(trainers(late), 200) == []
    assert told({"sync-0": merges(late)}, 200) == []


def test_where_all_are_late_nobody_is() -> None:
    def alike(now: float) -> dict[str, Any]:
        return {WAITED_SECONDS + name: 0.3 * now for name in NAMES}

    assert told({"trainer-3": alike}, 200) == []


def test_before_the_window_ends_nothing_is_told() -> None:
    assert told(trainers(0.9), int(LONG_SECONDS)) == []
    assert len(told(trainers(0.9), int(LONG_SECONDS) + 2)) == 1


def test_of_the_dead_nothing_is_told() -> None:
    assert told(trainers(0.9), 200, ("trainer-0", "trainer-1")) == []


def test_one_that_was_late_at_first_alone_is_not_late_later() -> None:
    """Each window counts for itself; the sums of the whole job do not."""

    def once(now: float) -> dict[str, Any]:
        return {WAITED_SECONDS + "trainer-2": 2.9 if now > 10 else 0.0, WAITED_SECONDS + "trainer-1": 0.0}

    assert told({"trainer-0": once}, 300) == []


def test_counts_of_other_nodes_say_nothing() -> None:
    assert told({"reader-0": lambda now: {"read_examples": 100 * now}}, 100) == []
