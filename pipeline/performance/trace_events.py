"""Chrome trace events of all nodes, on one clock.

The format is Google's Trace Event Format, which chrome://tracing and ui.perfetto.dev open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# In the order in which a batch passes the nodes.
ROLES = ("coordinator", "reader", "trainer", "embedding", "sync")


@dataclass(frozen=True)
class NodeTrace:
    """The trace of one process.

    Attributes:
        name, role: name and role of the node.
        marks: the result of `Tracer.stop`: `names`, `threads`, `marks`.
        offset_seconds: the process's clock minus the coordinator's.
    """

    name: str
    role: str
    marks: Mapping[str, Any]
    offset_seconds: float


def trace_events(traces: Iterable[NodeTrace]) -> list[dict[str, Any]]:
    """Return the events, in microseconds since the first one.

    Raises ValueError for wrong marks.
    """
    ordered = sorted(traces, key=lambda trace: (ROLES.index(trace.role), trace.name))
    starts = [
        mark[2] - trace.offset_seconds * 1e6 for trace in ordered for mark in _checked(trace.marks["marks"])
    ]
    zero = min(starts, default=0.0)
    events: list[dict[str, Any]] = []
    for process, trace in enumerate(ordered, 1):
        events += _head(process, trace)
        names = trace.marks["names"]
        for name, thread, began, length in trace.marks["marks"]:
            events.append(
                {
                    "name": str(names[name]),
                    "cat": trace.role,
                    "ph": "X",
                    "ts": round(began - trace.offset_seconds * 1e6 - zero),
                    "dur": length,
                    "pid": process,
                    "tid": thread + 1,
                }
            )
    return events


def _head(process: int, trace: NodeTrace) -> list[dict[str, Any]]:
    """Return metadata events: the names of a process and its threads."""
    named: list[tuple[str, int, dict[str, Any]]] = [
        ("process_name", 0, {"name": trace.name}),
        ("process_sort_index", 0, {"sort_index": process}),
    ]
    named += [
        ("thread_name", thread, {"name": str(name)}) for thread, name in enumerate(trace.marks["threads"], 1)
    ]
    return [
        {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": args} for kind, thread, args in named
    ]


def _checked(marks: Sequence[Any]) -> Sequence[Any]:
    for mark in marks:
        if len(mark) != 4 or not all(isinstance(value, int) for value in mark):
            raise ValueError(f"a mark must be four whole numbers, not {mark!r}")
    return marks
