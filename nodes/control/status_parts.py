"""Parts of a status that a job and a hub share, from the last reports of their members."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable

from ...pipeline.report.lateness import WAITED_SECONDS
from ...pipeline.report.merged_work import LATE_SECONDS, MERGES_WITH, MERGES_WITHOUT
from ...watch.status import Edge, Incident, NodeStatus, SyncFigures
from ..runtime.process_figures import process_metrics
from .cluster_state import ClusterState
from .membership import Member


def incidents_of(events: Iterable[tuple[float, str, str]], known: int) -> list[Incident]:
    """Return the events after the first `known` ones."""
    return [
        Incident(number=number, seconds=seconds, node=node, what=what)
        for number, (seconds, node, what) in enumerate(events, 1)
        if number > known
    ]


def sync_figures(state: ClusterState, trainers: list[str], now: float) -> SyncFigures:
    """Return the figures of synchronization; `trainers` are the names of the living."""
    counts = [member.metrics for member in state.members.alive("trainer")]
    means = [count.get("gap_sum", 0) / count["rounds"] for count in counts if count.get("rounds")]
    # Includes dead nodes: their work counts.
    everyone = state.members.everyone("trainer")
    gaps = [int(count["gap_open"]) for count in counts if "gap_open" in count]
    return SyncFigures(
        rounds=sum_of(everyone, "rounds"),
        incomplete_rounds=sum_of(everyone, "incomplete_rounds"),
        gap_open=max(gaps, default=None),
        gap_mean=sum(means) / len(means) if means else None,
        sent_bytes_per_second=state.rates.total(trainers, "sync_sent_bytes", now),
        received_bytes_per_second=state.rates.total(trainers, "sync_received_bytes", now),
        divergence=state.divergence.points[-1][1] if state.divergence.points else None,
    )


def own_status(state: ClusterState, role: str, now: float) -> NodeStatus:
    """Return the status of this process, whose heartbeat this is."""
    metrics, rates = process_metrics(), state.rates
    rates.record_heartbeat(role, now, metrics)
    return NodeStatus(
        name=role,
        role=role,
        index=0,
        host=socket.gethostname(),
        pid=os.getpid(),
        cpu=rates.of(role, "cpu_seconds", now),
        cpu_seconds=metrics["cpu_seconds"],
        memory_bytes=metrics.get("memory_bytes"),
        peak_memory_bytes=metrics["peak_memory_bytes"],
        refused_messages=sum(state.refused_messages.values()),
        refused_connections=state.refused_connections,
    )


def node_status(state: ClusterState, member: Member, now: float) -> NodeStatus:
    """Return the status of one node, by its last heartbeat."""
    info, metrics = member.info, member.metrics
    host, pid = state.places.get(info.token, ("", 0))
    alive = member.alive

    def rate(key: str) -> float | None:
        return state.rates.of(info.name, key, now) if alive else None

    waited = rate("wait_seconds")
    share, late = _lateness(state, info.name, now) if alive and info.role == "trainer" else (None, None)
    return NodeStatus(
        name=info.name,
        role=info.role,
        index=info.index,
        host=host,
        pid=pid,
        alive=alive,
        ready=member.ready,
        why=member.lost_because,
        cpu=rate("cpu_seconds"),
        cpu_seconds=metrics.get("cpu_seconds"),
        memory_bytes=member.count("memory_bytes") if alive else None,
        peak_memory_bytes=member.count("peak_memory_bytes"),
        examples=member.count("trained_examples" if info.role == "trainer" else "read_examples"),
        examples_per_second=rate("trained_examples" if info.role == "trainer" else "read_examples"),
        wait=min(1.0, waited / state.job.trainer.workers) if waited is not None else None,
        rounds=member.count("rounds"),
        gap_open=member.count("gap_open"),
        merge_share=share,
        late=late,
        queued=member.count("queued_batches"),
        retained_bytes=member.count("retained_bytes"),
        refused_messages=member.count("refused_messages") or 0,
        refused_connections=member.count("refused_connections") or 0,
        requests_per_second=rate("lookups" if info.role == "embedding" else "applied_slices")
        if info.role in ("embedding", "sync")
        else None,
    )


def _lateness(state: ClusterState, trainer: str, now: float) -> tuple[float | None, float | None]:
    """Return a trainer's `merge_share` and `late`, see `NodeStatus`, by the node to which it was latest."""

    def rates(role: str, key: str) -> list[float | None]:
        others = (member.info.name for member in state.members.alive(role))
        return [state.rates.of(name, key + trainer, now) for name in others]

    merged = zip(rates("sync", MERGES_WITH), rates("sync", MERGES_WITHOUT), strict=True)
    shares = [
        present / (present + absent)
        for present, absent in merged
        if present is not None and absent is not None and present + absent
    ]
    late = [*rates("sync", LATE_SECONDS), *rates("trainer", WAITED_SECONDS)]
    known = [min(1.0, share) for share in late if share is not None]
    return min(shares, default=None), max(known, default=None)


def edges_of(state: ClusterState, now: float) -> list[Edge]:
    """Return the edges: the traffic between trainers and the other nodes."""
    living = {member.info.name for member in state.members.alive()}
    rates: dict[tuple[str, str], tuple[float, float]] = {}
    for member in state.members.alive("trainer"):
        name = member.info.name
        for key in member.metrics:
            way, slash, other = key.partition("/")
            if not slash or way != "to" or other not in living:
                continue
            sent = state.rates.of(name, key, now) or 0.0
            received = state.rates.of(name, f"from/{other}", now) or 0.0
            if (other, name) in rates:
                # Between two trainers, each counts what it sends.
                up, down = rates[other, name]
                rates[other, name] = (up, down + sent)
            else:
                rates[name, other] = (sent, received)
    return [Edge(source=a, target=b, up=up, down=down) for (a, b), (up, down) in rates.items()]


def sum_of(members: Iterable[Member], key: str) -> int:
    """Return the sum of a count of the last heartbeats."""
    return sum(int(member.metrics.get(key, 0)) for member in members)
