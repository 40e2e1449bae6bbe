"""When a checkpoint is due."""

from __future__ import annotations

from shadowsync.nodes.coordinator.checkpoint.manager import IntervalTrigger


def test_by_examples_at_each_multiple() -> None:
    due = IntervalTrigger(100, 0.0)
    assert not due.now(0, 0.0)
    assert not due.now(99, 1e6)
    assert due.now(101, 0.0)
    assert due.now(101, 0.0)
    due.done(250, 0.0)
    assert not due.now(299, 0.0)
    assert due.now(300, 0.0)


def test_a_run_that_goes_on_is_not_due_at_once() -> None:
    due = IntervalTrigger(100, 0.0)
    assert not due.now(1234, 0.0)
    assert not due.now(1299, 0.0)
    assert due.now(1300, 0.0)


def test_by_seconds_since_the_last_time() -> None:
    due = IntervalTrigger(0, 10.0)
    assert not due.now(0, 5.0)
    assert not due.now(10**9, 14.9)
    assert due.now(0, 15.0)
    due.done(0, 18.0)
    assert not due.now(0, 27.9)
    assert due.now(0, 28.0)


def test_whichever_comes_first() -> None:
    due = IntervalTrigger(100, 10.0)
    assert not due.now(0, 0.0)
    assert due.now(100, 1.0)
    assert due.now(1, 10.0)


def test_by_epochs() -> None:
    due = IntervalTrigger(0, 0.0, 2)
    assert not due.now(0, 0.0, 0)
    assert not due.now(10**9, 1e9, 1)
    assert due.now(0, 0.0, 2)
    assert due.now(0, 0.0, 3)
    due.done(0, 0.0, 3)
    assert not due.now(0, 0.0, 3)
    assert due.now(0, 0.0, 4)


def test_never() -> None:
    due = IntervalTrigger(0, 0.0)
    assert not due.now(0, 0.0)
    assert not due.now(10**9, 10.0**9)
