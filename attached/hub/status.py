"""The status of a hub: its loops, their book of steps, and the synchronization."""

from __future__ import annotations

from ...nodes.control.membership import Member
from ...nodes.control.status_parts import (
    edges_of,
    incidents_of,
    node_status,
    own_status,
    sync_figures,
)
from ...watch.curves import parts_of
from ...watch.status import (
    Cursor,
    CurvePart,
    LoopFigures,
    NodeStatus,
    Progress,
    SampleFigures,
    Status,
)
from .members import LOOP, SYNC
from .state import HubState

# Threads of the hub's process have no figures of their own.
_OF_PROCESS = dict.fromkeys(("cpu", "cpu_seconds", "memory_bytes", "peak_memory_bytes"))


def hub_status(state: HubState, cursor: Cursor | None, known_incidents: int) -> Status:
    """Build the status, with news since the cursors."""
    now = state.seconds()
    names = [member.info.name for member in state.loops]
    return Status(
        run=state.folder.name,
        algorithm=state.job.sync.algorithm,
        mode=state.job.sync.mode if state.job.sync.algorithm != "none" else "none",
        phase=state.phase,
        page=state.page,
        seconds=now,
        node_timeout_seconds=state.job.run.node_timeout_seconds,
        expected={SYNC: state.job.sync_nodes},
        progress=Progress(trained=0, distinct=0),
        sync=sync_figures(state, names, now),
        loops=_loops(state, names, now),
        nodes=[
            own_status(state, "hub", now),
            *(_node(state, member, now) for member in state.members.everyone()),
        ],
        edges=edges_of(state, now),
        incidents=incidents_of(state.events, known_incidents),
        curves=_curves(state, cursor) if cursor is not None else {},
    )


def _loops(state: HubState, names: list[str], now: float) -> LoopFigures:
    book = state.book()
    unsynchronized = [(record.steps - record.synchronized, record.state) for record in book.loops]
    gone = ("left", "died")
    return LoopFigures(
        members=len(names),
        steps=sum(record.steps for record in book.loops),
        synchronized=sum(record.synchronized for record in book.loops),
        open=sum(steps for steps, how in unsynchronized if how not in gone),
        lost=sum(steps for steps, how in unsynchronized if how in gone),
        per_second=state.rates.total(names, "iterations", now),
        samples=[
            SampleFigures(
                stream=record.stream,
                granted=record.granted,
                finished=record.finished,
                returned=record.returned,
                held=record.held,
            )
            for record in book.samples
        ],
    )


def _node(state: HubState, member: Member, now: float) -> NodeStatus:
    status = node_status(state, member, now)
    if member.info.role != LOOP:
        return status.model_copy(update=_OF_PROCESS)
    counts = {
        "role": "loop",
        "steps": member.count("iterations"),
        "synchronized": member.count("synced_iterations"),
        "steps_per_second": state.rates.of(member.info.name, "iterations", now) if member.alive else None,
        "sync_sent_bytes": member.count("sync_sent_bytes"),
        "sync_received_bytes": member.count("sync_received_bytes"),
    }
    return status.model_copy(update=counts)


def _curves(state: HubState, cursor: Cursor) -> dict[str, CurvePart]:
    curves = dict(state.gaps.curves(state.seconds()))
    curves["divergence"] = (state.divergence.period_seconds, state.divergence.points)
    return parts_of(curves, cursor)
