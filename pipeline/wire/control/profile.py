"""Requests of the coordinator to nodes that are profiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..field_checks import Count, Counts, Items, Seconds
from .base import Reply, Request

MAX_MARKS = 1 << 18


@dataclass(frozen=True, slots=True)
class Measure(Request["MeasureReply"]):
    """A node measures itself, from the first request to the `last` one."""

    last: bool


@dataclass(frozen=True, slots=True)
class MeasureReply(Reply):
    """Figures of a process so far, by its machine's clock.

    Attributes:
        clock: time in seconds.
        machine: an id of the kernel.
        threads: seconds of CPU and of waiting for a core, by the thread's name.
        sampled: the counts wakes, locked_wakes and stalled_seconds.
    """

    clock: Seconds
    machine: str
    cores: Count
    counts: Counts
    threads: dict[str, tuple[Seconds, Seconds]]
    sampled: Counts


@dataclass(frozen=True, slots=True)
class Trace(Request["TraceReply"]):
    """A node traces itself for so long."""

    seconds: Seconds

    def require(self, reply: TraceReply) -> None:
        """See `Request`: every mark names an activity and a thread that are there."""
        for name, thread, *_ in reply.marks:
            if name >= len(reply.names) or thread >= len(reply.threads):
                raise ValueError(f"a mark of activity {name} on thread {thread}, which it does not name")


@dataclass(frozen=True, slots=True)
class TraceReply(Reply):
    """The activities of the node's threads.

    Attributes:
        marks: for each activity the indexes of its name and thread, its begin and its length in microseconds.
    """

    names: tuple[str, ...]
    threads: tuple[str, ...]
    marks: Annotated[tuple[tuple[Count, Count, Count, Count], ...], Items(MAX_MARKS)]
