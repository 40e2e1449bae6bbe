"""Traces of several processes as one list of Chrome trace events."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.pipeline.performance.trace_events import NodeTrace, trace_events


def marks(*found: list[int], names: tuple[str, ...] = ("lookup", "push")) -> dict[str, Any]:
    return {"names": list(names), "threads": ["shard", "rows-1"], "marks": list(found)}


def test_events_are_in_microseconds_since_the_first_on_one_clock() -> None:
    # The embedding node's clock is five seconds ahead: its lookup was a millisecond after the step began.
    trainer = NodeTrace("trainer-0", "trainer", marks([0, 0, 1_000_000, 700], names=("compute",)), 0.0)
    shard = NodeTrace("embedding-0", "embedding", marks([0, 0, 6_001_000, 250], [1, 1, 6_002_000, 90]), 5.0)
    events = trace_events([shard, trainer])
    done = {(e["name"], e["ts"], e["dur"], e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    assert done == {("compute", 0, 700, 1, 1), ("lookup", 1000, 250, 2, 1), ("push", 2000, 90, 2, 2)}
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert named[2, 2] == "rows-1"
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["trainer-0", "embedding-0"]


def test_a_trace_of_nothing_is_none() -> None:
    empty = NodeTrace("reader-0", "reader", {"names": [], "threads": [], "marks": []}, 0.0)
    assert [e["ph"] for e in trace_events([empty])] == ["M", "M"]


def test_what_is_no_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="four whole numbers"):
        trace_events([NodeTrace("reader-0", "reader", marks([0, 0, 1]), 0.0)])
