"""The coordinator's say on who synchronizes with whom."""

from __future__ import annotations

from shadowsync.nodes.runtime.members import SyncGroup, summed
from shadowsync.pipeline.wire.control.orders import GroupView


def formed(count: int) -> SyncGroup:
    """A group of trainers 0 to count - 1."""
    group = SyncGroup()
    group.form(range(count))
    return group


def test_every_change_is_a_generation() -> None:
    group = formed(3)
    first = group.view
    second = group.lose(1)
    assert second == GroupView(first.generation + 1, (0, 2))
    assert group.admit(1) == GroupView(first.generation + 2, (0, 1, 2))


def test_what_changes_nothing_is_no_generation() -> None:
    group = formed(2)
    assert group.lose(7) is None
    assert group.admit(1) is None
    assert group.view.generation == 1


def test_a_late_member_is_put_out_once() -> None:
    group = formed(3)
    generation = group.view.generation
    view = group.late(generation, 2, reported_by=0)
    assert view is not None
    assert view.members == (0, 1)
    assert group.late(generation, 2, reported_by=1) is None


def test_two_that_blame_each_other_are_not_both_put_out() -> None:
    group = formed(2)
    generation = group.view.generation
    assert group.late(generation, 1, reported_by=0) is not None
    assert group.late(generation, 0, reported_by=1) is None
    assert group.late(group.view.generation, 0, reported_by=1) is None, "it is out itself"
    assert group.view.members == (0,)


def test_nobody_reports_itself() -> None:
    group = formed(2)
    assert group.late(group.view.generation, 1, reported_by=1) is None


def test_counts_of_links_are_summed_by_name() -> None:
    assert summed([{"a": 1, "b": 0}, {}, {"a": 2, "c": 4}]) == {"a": 3, "b": 0, "c": 4}
    assert summed([]) == {}
