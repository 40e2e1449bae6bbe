"""The reply to a status request, from the last reports of the nodes.

`build_status` is of a job; a hub of attached loops makes its own of the same parts.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from ....pipeline.config.job import Job
from ....pipeline.report.adaptation import choices_of
from ....pipeline.report.sharing import shared_rows
from ....pipeline.wire.control.messages import GetStatus
from ....watch.curves import parts_of
from ....watch.status import (
    Cursor,
    CurvePart,
    Edge,
    EmbeddingFigures,
    HourNe,
    Incident,
    LabelNe,
    LedgerFigures,
    NodeStatus,
    Progress,
    Quality,
    Speed,
    Status,
    SyncFigures,
    ValidationStatus,
)
from ...control.membership import Member
from ...control.progress import NodeRates
from ...control.replica_sampler import SampledState
from ...runtime.process_figures import process_metrics
from ..state.job import JobState
from ..state.phases import JobPhase

# Hours that a status has, the latest ones.
_HOURS: Final = 24


class ShownState(SampledState, Protocol):
    """What nodes and synchronization show of `JobState`, or of the state of a hub."""

    @property
    def job(self) -> Job:
        """The job."""
        ...

    @property
    def rates(self) -> NodeRates:
        """The last heartbeats."""
        ...

    @property
    def places(self) -> Mapping[str, tuple[str, int]]:
        """Host and process by token."""
        ...


def status_body(state: JobState, request: GetStatus) -> dict[str, Any]:
    """Build the reply to a status request."""
    return build_status(state, request.curves, request.incidents).model_dump(mode="json")


def build_status(state: JobState, cursor: Cursor | None, known_incidents: int) -> Status:
    """Build the status, with news since the cursors."""
    now = state.seconds()
    trainers = [member.info.name for member in state.members.alive("trainer")]
    return Status(
        run=state.folder.name,
        algorithm=state.job.sync.algorithm,
        mode=state.job.sync.mode if state.job.sync.algorithm != "none" else "none",
        phase=_phase_of(state),
        page=state.page,
        seconds=now,
        node_timeout_seconds=state.job.run.node_timeout_seconds,
        batch=state.job.trainer.batch,
        elp=state.job.trainer.batch * state.job.trainer.workers * state.job.trainer.count,
        expected=state.job.expected,
        progress=_progress(state),
        speed=Speed(
            now=state.rates.total(trainers, "trained_examples", now),
            mean=state.training_metrics.examples_per_second(),
        ),
        quality=_quality(state),
        sync=sync_figures(state, trainers, now),
        embedding=_embedding(state, now),
        ledger=_ledger_figures(state),
        nodes=[
            own_status(
                state.rates,
                now,
                "coordinator",
                refused_messages=sum(state.refused_messages.values()),
                refused_connections=state.refused_connections,
            ),
            *(node_status(state, member, now) for member in state.members.everyone()),
        ],
        edges=edges_of(state, now),
        validation_metric=state.job.validation.metric,
        validation=[
            ValidationStatus(examples=one.examples, value=one.value, metrics=one.metrics)
            for one in state.scored
        ],
        incidents=incidents_of(state.events, known_incidents),
        curves=curve_parts(state, cursor) if cursor is not None else {},
    )


def incidents_of(events: Iterable[tuple[float, str, str]], known: int) -> list[Incident]:
    """Return the events after the first `known` ones."""
    return [
        Incident(number=number, seconds=seconds, node=node, what=what)
        for number, (seconds, node, what) in enumerate(events, 1)
        if number > known
    ]


def curve_parts(state: JobState, cursor: Cursor) -> dict[str, CurvePart]:
    """Return what is new of each curve."""
    curves = dict(state.training_metrics.curves(state.seconds()))
    curves["divergence"] = (state.divergence.period_seconds, state.divergence.points)
    return parts_of(curves, cursor)


def _phase_of(state: JobState) -> str:
    waits = state.phase is JobPhase.TRAINING and state.is_paused
    return "waiting for a validation" if waits else state.phase.value


def _quality(state: JobState) -> Quality:
    metrics = state.training_metrics
    labels = {name: LabelNe(ne=ne, ne_recent=recent) for name, (ne, recent) in metrics.ne_by_label.items()}
    hours = [HourNe(hour=one.hour, examples=one.examples, ne=one.ne) for one in metrics.hours()[-_HOURS:]]
    shown = hours if len(hours) > 1 else []
    return Quality(ne=metrics.ne_progressive, ne_recent=metrics.ne_recent, labels=labels, hours=shown)


def _progress(state: JobState) -> Progress:
    totals, restored = state.ledger.totals, state.ledger.restored_examples
    expected = state.input.size.expected(totals.bad_rows)
    speed = state.training_metrics.examples_per_second()
    done = totals.distinct_examples + totals.untrained_examples
    done += restored + state.ledger.restored_left_out_examples
    left = max(0, expected.examples - done) if expected else None
    training = state.phase is JobPhase.TRAINING and not state.is_paused
    return Progress(
        trained=totals.trained_examples,
        distinct=totals.distinct_examples + restored,
        total=expected.examples if expected else None,
        exact=expected.exact if expected else False,
        epochs=state.job.data.epochs,
        seconds_left=left / speed if left is not None and speed and training else None,
    )


def sync_figures(state: ShownState, trainers: list[str], now: float) -> SyncFigures:
    """Return the figures of synchronization; `trainers` are the names of the living."""
    counts = [member.metrics for member in state.members.alive("trainer")]
    means = [count.get("gap_sum", 0) / count["rounds"] for count in counts if count.get("rounds")]
    # Includes dead nodes: their work counts.
    everyone = state.members.everyone("trainer")
    gaps = [int(count["gap_open"]) for count in counts if "gap_open" in count]
    return SyncFigures(
        rounds=_sum(everyone, "rounds"),
        incomplete_rounds=_sum(everyone, "incomplete_rounds"),
        gap_open=max(gaps, default=None),
        gap_mean=sum(means) / len(means) if means else None,
        sent_bytes_per_second=state.rates.total(trainers, "sync_sent_bytes", now),
        received_bytes_per_second=state.rates.total(trainers, "sync_received_bytes", now),
        divergence=state.divergence.points[-1][1] if state.divergence.points else None,
        gap_target=state.control.settings.gap if state.control is not None else None,
        elastic_rate=state.control.settings.elastic_rate if state.control is not None else None,
    )


def _embedding(state: JobState, now: float) -> EmbeddingFigures:
    shards = state.members.alive("embedding")
    names = [shard.info.name for shard in shards]
    pushes = _sum(shards, "staleness_count")
    readers = [reader.metrics for reader in state.members.everyone("reader")]
    # A node that has just joined has not counted yet.
    largest = max((int(shard.metrics.get("staleness_max", 0)) for shard in shards), default=0)
    return EmbeddingFigures(
        lookups_per_second=state.rates.total(names, "lookups", now),
        pushes_per_second=state.rates.total(names, "staleness_count", now),
        staleness_mean=_sum(shards, "staleness_sum") / pushes if pushes else None,
        staleness_max=largest if pushes else None,
        sharing_examples=shared_rows(state.job.hashed_tables, readers).examples,
    )


def _read_by_dead(state: JobState) -> int:
    """Count the settled examples of dead readers; the rest is read again."""
    trainers = [trainer.info.name for trainer in state.members.everyone("trainer")]
    dead = [reader.info.name for reader in state.members.everyone("reader") if not reader.alive]
    return sum(state.ledger.known_deliveries(reader, trainer) for reader in dead for trainer in trainers)


def _ledger_figures(state: JobState) -> LedgerFigures:
    totals = state.ledger.totals
    read = _sum(state.members.alive("reader"), "read_examples") + _read_by_dead(state)
    return LedgerFigures(
        read=read,
        trained=totals.trained_examples,
        distinct=totals.distinct_examples,
        replayed=totals.replayed_examples,
        returned=totals.returned_examples,
        in_flight=max(
            0, read - totals.trained_examples - totals.left_out_examples - totals.returned_examples
        ),
        left_out=totals.left_out_examples,
        bad_rows=totals.bad_rows,
    )


def _sum(members: Iterable[Member], key: str) -> int:
    return sum(int(member.metrics.get(key, 0)) for member in members)


def own_status(
    rates: NodeRates, now: float, role: str, *, refused_messages: int, refused_connections: int
) -> NodeStatus:
    """Return the status of this process, whose heartbeat this is."""
    metrics = process_metrics()
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
        refused_messages=refused_messages,
        refused_connections=refused_connections,
    )


def node_status(state: ShownState, member: Member, now: float) -> NodeStatus:
    """Return the status of one node, by its last heartbeat."""
    info, metrics = member.info, member.metrics
    host, pid = state.places.get(info.token, ("", 0))
    alive = member.alive

    def rate(key: str) -> float | None:
        return state.rates.of(info.name, key, now) if alive else None

    waited = rate("wait_seconds")
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
        queued=member.count("queued_batches"),
        retained_bytes=member.count("retained_bytes"),
        refused_messages=member.count("refused_messages") or 0,
        refused_connections=member.count("refused_connections") or 0,
        requests_per_second=rate("lookups" if info.role == "embedding" else "applied_slices")
        if info.role in ("embedding", "sync")
        else None,
    )


def edges_of(state: ShownState, now: float) -> list[Edge]:
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
    codecs = {
        (choice.trainer, choice.node): choice.codec
        for member in state.members.alive("trainer")
        for choice in choices_of(member.info.name, member.metrics)
    }
    return [
        Edge(source=a, target=b, up=up, down=down, codec=codecs.get((a, b)))
        for (a, b), (up, down) in rates.items()
    ]
