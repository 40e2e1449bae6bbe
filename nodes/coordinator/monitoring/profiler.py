"""The coordinator's part of a profile: measures and clock offsets of all nodes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ....pipeline.performance.document import Profile, TraceNote
from ....pipeline.performance.measurements import (
    NodeMeasurements,
    ProfileMeasurements,
    ThreadTime,
    depth_bounds,
)
from ....pipeline.performance.memory import total_memory_bytes
from ....pipeline.performance.plan_basis import PlanBasis
from ....pipeline.performance.trace_events import NodeTrace, trace_events
from ....pipeline.text.format import duration
from ....pipeline.wire.control.profile import Measure, MeasureReply, Trace
from ....pipeline.wire.field_checks import Counts
from ....pipeline.wire.segment import running_kernel
from ...runtime.process_figures import measure_process, process_metrics
from ...runtime.tracing import TRACER, Sampler

if TYPE_CHECKING:
    from ...control.membership import Member
    from ..server import CoordinatorServer


@dataclass(frozen=True)
class RoleReply:
    """The measures of a node, with its role."""

    role: str
    reply: MeasureReply


def measurements_between(
    first: Mapping[str, RoleReply], last: Mapping[str, RoleReply]
) -> list[NodeMeasurements]:
    """Return the growth of the counts of each node that replied both times."""
    return [
        _between(name, reply.role, first[name].reply, reply.reply)
        for name, reply in last.items()
        if name in first and reply.reply.clock > first[name].reply.clock
    ]


def _between(name: str, role: str, first: MeasureReply, last: MeasureReply) -> NodeMeasurements:
    seconds = last.clock - first.clock
    wakes = _grown(first.sampled, last.sampled, "wakes")
    locked = _grown(first.sampled, last.sampled, "locked_wakes")
    return NodeMeasurements(
        name=name,
        role=role,
        machine=last.machine,
        cores=last.cores,
        seconds=seconds,
        cpu_seconds=_grown(first.counts, last.counts, "cpu_seconds"),
        stalled_share=min(1.0, _grown(first.sampled, last.sampled, "stalled_seconds") / seconds),
        locked_share=locked / wakes if wakes else 0.0,
        threads={
            thread: ThreadTime(
                cpu_seconds=max(0.0, times[0] - first.threads.get(thread, (0.0, 0.0))[0]),
                core_wait_seconds=max(0.0, times[1] - first.threads.get(thread, (0.0, 0.0))[1]),
            )
            for thread, times in last.threads.items()
        },
        counts={key: float(value) - float(first.counts.get(key, 0.0)) for key, value in last.counts.items()},
        memory_bytes=max(0.0, float(last.counts.get("memory_bytes", 0.0))),
    )


def _grown(first: Counts, last: Counts, key: str) -> float:
    return max(0.0, float(last.get(key, 0.0)) - float(first.get(key, 0.0)))


class NodeClocks:
    """Estimate clock offsets by Cristian's algorithm.

    The reply with the shortest round trip counts; the error is at most half of that trip. Nodes on this
    kernel read the same clock.

    Args:
        machine: the name of this kernel.
    """

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._offsets: dict[str, tuple[float, float]] = {}

    def record(self, node: str, reply: MeasureReply, requested_at: float, replied_at: float) -> None:
        """Add a reply with `clock` and `machine`; both times are of this process's clock."""
        offset, error = reply.clock - (requested_at + replied_at) / 2, (replied_at - requested_at) / 2
        if reply.machine == self._machine:
            offset = error = 0.0
        if node not in self._offsets or error < self._offsets[node][1]:
            self._offsets[node] = (offset, error)

    def offset_seconds(self, node: str) -> float:
        """The node's clock minus this one; 0 for an unknown node."""
        return self._offsets.get(node, (0.0, 0.0))[0]

    @property
    def error_seconds(self) -> float:
        """The largest error of an offset."""
        return max((error for _, error in self._offsets.values()), default=0.0)


SELF: Final = "coordinator"
TRACE_SECONDS: Final = 1.0
PERIOD_SECONDS: Final = 1.0
REQUEST_SECONDS: Final = 5.0
# First steps are slow: kernels are chosen, memory is allocated, pages are touched for the first time.
WARM_UP_SHARE: Final = 0.15
MOST_WARM_UP_SECONDS: Final = 3.0

RepliesByNode = dict[str, RoleReply]

log = logging.getLogger(__name__)


@dataclass
class ProfileReplies:
    """All nodes' replies at start and end, with traces."""

    first: RepliesByNode = field(default_factory=dict)
    last: RepliesByNode = field(default_factory=dict)
    traces: list[NodeTrace] = field(default_factory=list)


class Profiler:
    """Measure a training job for a while, and end it.

    Runs on the coordinator's loop.

    Attributes:
        ended: why training should end, in words; empty until then.

    Args:
        seconds: time from the first to the last measurement; the trace is recorded after it.
    """

    def __init__(self, server: CoordinatorServer, seconds: float) -> None:
        self._server = server
        self._state = server.state
        self._seconds = seconds
        self._replies = ProfileReplies()
        self._clocks = NodeClocks(running_kernel())
        self._sampler = Sampler()
        self._input_ended = False
        self.ended = ""

    async def run(self) -> None:
        """Run until the profile or the training ends."""
        members = self._state.members
        # Includes those that wait until the start of the job is over.
        trainers = [node.info.name for node in (*members.alive("trainer"), *members.joining("trainer"))]
        await self._server.wait_for(lambda: self._over or (self._all_train(trainers) and self._all_begun))
        warm_up = min(MOST_WARM_UP_SECONDS, WARM_UP_SHARE * self._seconds)
        await self._server.wait_for(lambda: self._over, warm_up)
        if self._over:
            return
        self._sampler.start()
        try:
            await self._measure()
        finally:
            self._sampler.stop()
        self.ended = f"profiled for {duration(self._seconds)}"
        await self._server.notify()

    async def _measure(self) -> None:
        self._replies.first = self._replies.last = await self._request_all_measures()
        end = time.monotonic() + self._seconds
        while (left := end - time.monotonic()) > 0 and not self._over:
            await self._server.wait_for(lambda: self._over, min(PERIOD_SECONDS, left))
            # After the end of the input it would measure idle nodes.
            if not self._over:
                replies = await self._request_all_measures()
                # A node that missed this request counts by its replies before and after.
                self._replies.first = replies | self._replies.first
                self._replies.last = self._replies.last | replies
        self._input_ended = self._over
        if not self._over:
            await self._trace(TRACE_SECONDS)
        await self._request_all_measures(last=True)

    def profile(self) -> tuple[Profile, list[dict[str, Any]]] | None:
        """Build the profile with its trace; None if nothing was measured.

        Nothing was measured if training ended first, or no trainer replied twice.
        """
        job = self._state.job
        nodes = measurements_between(self._replies.first, self._replies.last)
        trainers = [node for node in nodes if node.role == "trainer"]
        if not trainers or not any(node.count("trained_examples") for node in trainers):
            return None
        synced = job.sync.algorithm != "none"
        measured = ProfileMeasurements(
            run=self._state.folder.name,
            seconds=max(node.seconds for node in trainers),
            workers=job.trainer.workers,
            batch=job.trainer.batch,
            prepared=bool(job.data.prepared),
            depth_bounds=depth_bounds(job),
            sync=f"{job.sync.algorithm}, {job.sync.mode}" if synced else "none",
            basis=PlanBasis.of(job, total_memory_bytes()),
            nodes=nodes,
        )
        events = trace_events(self._replies.traces)
        note = TraceNote(
            seconds=TRACE_SECONDS,
            events=len(events),
            clock_error_seconds=self._clocks.error_seconds,
        )
        return Profile.of(measured, self._notes(measured), note if self._replies.traces else None), events

    def _notes(self, measured: ProfileMeasurements) -> list[str]:
        notes = []
        measured_names = {node.name for node in measured.nodes}
        if silent := sorted({member.info.name for member in self._state.members.alive()} - measured_names):
            notes.append(
                f"{', '.join(silent)} did not answer twice within {duration(REQUEST_SECONDS)} and are not in"
                " this profile: measure for longer, or see what else runs there."
            )
        if self._input_ended and measured.seconds < 0.7 * self._seconds:
            notes.append(
                f"The input ended after {duration(measured.seconds)} of {duration(self._seconds)}: give more"
                " input, or raise `data.epochs`."
            )
        if any(not node.threads for node in measured.nodes):
            notes.append("Some systems do not report waits for a core: there they count as compute.")
        notes.append("This run was a profile: it ended early, and wrote and scored no checkpoint at its end.")
        return notes

    @property
    def _over(self) -> bool:
        return self._state.ledger.complete or self._state.lifecycle.stop is not None

    def _all_train(self, trainers: list[str]) -> bool:
        living = {member.info.name for member in self._state.members.living()}
        return all(self._state.ledger.trained_batches_of.get(name) for name in trainers if name in living)

    @property
    def _all_begun(self) -> bool:
        """Whether no worker waits for its turn to begin: such a wait is none for a reader."""
        job = self._state.job
        return job.begun_workers(self._state.ledger.examples_so_far) == job.trainer.workers

    async def _request_all_measures(self, *, last: bool = False) -> RepliesByNode:
        members = self._state.members.alive()
        replies = await asyncio.gather(*(self._request_measures(member, last=last) for member in members))
        measures = {
            member.info.name: RoleReply(member.info.role, reply)
            for member, reply in zip(members, replies, strict=True)
            if reply is not None
        }
        return measures | {SELF: self._measure_self()}

    async def _request_measures(self, member: Member, *, last: bool) -> MeasureReply | None:
        requested_at = time.monotonic()
        reply = await self._server.call(member, Measure(last=last), REQUEST_SECONDS)
        if reply is not None:
            self._clocks.record(member.info.name, reply, requested_at, time.monotonic())
        return reply

    def _measure_self(self) -> RoleReply:
        return RoleReply(SELF, measure_process(process_metrics(), self._sampler))

    async def _trace(self, seconds: float) -> None:
        TRACER.start()
        members = {member.info.name: member for member in self._state.members.alive()}
        replies = await self._server.call_all(members.values(), Trace(seconds), seconds + 5.0)
        traces = [NodeTrace(SELF, SELF, TRACER.stop(), 0.0)]
        for name, reply in replies.items():
            offset = self._clocks.offset_seconds(name)
            marks = {"names": reply.names, "threads": reply.threads, "marks": reply.marks}
            traces.append(NodeTrace(name, members[name].info.role, marks, offset))
        self._replies.traces = traces
