"""What threads did: seconds by activity, and marks while traced."""

from __future__ import annotations

import threading
import time

import pytest
from shadowsync.nodes.runtime import tracing
from shadowsync.nodes.runtime.tracing import Activity, Tracer


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> Tracer:
    """In place of the process's own."""
    own = Tracer(most=4)
    monkeypatch.setattr(tracing, "TRACER", own)
    return own


def spin(seconds: float) -> None:
    """Uses the core for so long."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_an_activity_counts_its_clock_and_its_core(tracer: Tracer) -> None:
    """Both are between what the clocks say just within it and just around it, however busy the machine is."""
    working, idle = Activity("work", cpu=True), Activity("idle", cpu=True)

    def wait_for_another_thread() -> None:
        other = threading.Thread(target=spin, args=(0.03,))
        other.start()
        other.join()

    def work() -> None:
        spin(0.03)

    for activity, do in ((working, work), (idle, wait_for_another_thread)):
        around = time.monotonic(), time.thread_time()
        with activity:
            within = time.monotonic(), time.thread_time()
            do()
            clock, core = time.monotonic() - within[0], time.thread_time() - within[1]
        assert clock <= activity.seconds <= time.monotonic() - around[0]
        assert core <= activity.cpu_seconds <= time.thread_time() - around[1]
    assert tracer.stop()["marks"] == [], "nothing is marked while it is off"


def test_an_activity_counts_what_fails_too() -> None:
    activity = Activity("work")

    def work() -> None:
        with activity:
            spin(0.01)
            raise KeyError("what the work met")

    with pytest.raises(KeyError):
        work()
    assert activity.seconds > 0.0


def test_marks_have_their_names_and_threads(tracer: Tracer) -> None:
    tracer.start()
    began = time.monotonic()

    def work() -> None:
        tracer.note("compute", began, 0.5)

    thread = threading.Thread(target=work, name="worker-7")
    thread.start()
    thread.join()
    parsing = Activity("parse")
    with parsing:
        spin(0.01)
    tracer.note("too short", began, 1e-7)
    traced = tracer.stop()
    assert traced["names"] == ["compute", "parse"]
    assert traced["threads"] == ["worker-7", threading.current_thread().name]
    (compute, parse) = traced["marks"]
    assert compute == [0, 0, round(began * 1e6), 500_000]
    assert parse[:2] == [1, 1]
    assert parse[3] == round(parsing.seconds * 1e6) > 0


def test_the_last_marks_are_kept_and_each_trace_starts_anew(tracer: Tracer) -> None:
    tracer.start()
    for second in range(10):
        tracer.note("step", float(second), 1.0)
    assert [mark[2] for mark in tracer.stop()["marks"]] == [6_000_000, 7_000_000, 8_000_000, 9_000_000]
    tracer.start()
    assert tracer.stop()["marks"] == []
