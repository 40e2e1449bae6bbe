"""The reply to a status request, from the last reports of the nodes."""

from __future__ import annotations

from typing import Any, Final

from ....pipeline.report.tables.sharing import shared_rows
from ....pipeline.wire.control.messages import GetStatus
from ....watch.curves import parts_of
from ....watch.status import (
    Cursor,
    CurvePart,
    EmbeddingFigures,
    HourNe,
    LabelNe,
    LedgerFigures,
    Progress,
    Quality,
    Speed,
    Status,
    ValidationStatus,
)
from ...control.status_parts import (
    edges_of,
    incidents_of,
    node_status,
    own_status,
    sum_of,
    sync_figures,
)
from ..state.job import JobState
from ..state.phases import JobPhase

# Hours that a status has, the latest ones.
_HOURS: Final = 24


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
            mean=state.training.metrics.examples_per_second(),
        ),
        quality=_quality(state),
        sync=sync_figures(state, trainers, now),
        embedding=_embedding(state, now),
        ledger=_ledger_figures(state),
        nodes=[
            own_status(state, "coordinator", now),
            *(node_status(state, member, now) for member in state.members.everyone()),
        ],
        edges=edges_of(state, now),
        validation_metric=state.job.validation.metric,
        validation=[
            ValidationStatus(examples=score.examples, value=score.value, metrics=score.metrics)
            for score in state.checkpointing.scored
        ],
        incidents=incidents_of(state.events, known_incidents),
        curves=curve_parts(state, cursor) if cursor is not None else {},
    )


def curve_parts(state: JobState, cursor: Cursor) -> dict[str, CurvePart]:
    """Return what is new of each curve."""
    curves = dict(state.training.metrics.curves(state.seconds()))
    curves["divergence"] = (state.divergence.period_seconds, state.divergence.points)
    return parts_of(curves, cursor)


def _phase_of(state: JobState) -> str:
    if state.lifecycle.phase is JobPhase.TRAINING and state.checkpointing.is_paused:
        return "waiting for a validation"
    if state.lifecycle.phase is JobPhase.TRAINING and state.lone_start.waiting():
        return "training, one trainer alone at first"
    workers = state.job.trainer.workers
    begun = state.job.begun_workers(state.ledger.examples_so_far)
    if state.lifecycle.phase is JobPhase.TRAINING and begun < workers:
        return f"training, {begun} of {workers} workers a trainer at first"
    return state.lifecycle.phase.value


def _quality(state: JobState) -> Quality:
    metrics = state.training.metrics
    labels = {name: LabelNe(ne=ne, ne_recent=recent) for name, (ne, recent) in metrics.ne_by_label.items()}
    hours = [HourNe(hour=hour.hour, examples=hour.examples, ne=hour.ne) for hour in metrics.hours()[-_HOURS:]]
    shown = hours if len(hours) > 1 else []
    return Quality(ne=metrics.ne_progressive, ne_recent=metrics.ne_recent, labels=labels, hours=shown)


def _progress(state: JobState) -> Progress:
    totals, restored = state.ledger.totals, state.ledger.restored_examples
    expected = state.training.input.size.expected(totals.bad_rows)
    speed = state.training.metrics.examples_per_second()
    done = totals.distinct_examples + totals.untrained_examples
    done += restored + state.ledger.restored_left_out_examples
    left = max(0, expected.examples - done) if expected else None
    training = state.lifecycle.phase is JobPhase.TRAINING and not state.checkpointing.is_paused
    return Progress(
        trained=totals.trained_examples,
        distinct=totals.distinct_examples + restored,
        total=expected.examples if expected else None,
        exact=expected.exact if expected else False,
        epochs=state.job.data.epochs,
        seconds_left=left / speed if left is not None and speed and training else None,
    )


def _embedding(state: JobState, now: float) -> EmbeddingFigures:
    shards = state.members.alive("embedding")
    names = [shard.info.name for shard in shards]
    pushes = sum_of(shards, "staleness_count")
    readers = [reader.metrics for reader in state.members.everyone("reader")]
    # A node that has just joined has not counted yet.
    largest = max((int(shard.metrics.get("staleness_max", 0)) for shard in shards), default=0)
    return EmbeddingFigures(
        lookups_per_second=state.rates.total(names, "lookups", now),
        pushes_per_second=state.rates.total(names, "staleness_count", now),
        staleness_mean=sum_of(shards, "staleness_sum") / pushes if pushes else None,
        staleness_max=largest if pushes else None,
        sharing_examples=shared_rows(state.job.hashed_tables, readers).examples,
        **_disk_figures(state, names, now),
    )


def _disk_figures(state: JobState, shards: list[str], now: float) -> dict[str, float | None]:
    """Return what there is to say of rows on disk; nothing if all are in memory."""
    requested = state.rates.total(shards, "disk_requested", now)
    if not requested:
        return {}
    missed = state.rates.total(shards, "disk_missed", now)
    waits = [state.rates.total([name], "disk_wait_seconds", now) or 0.0 for name in shards]
    return {
        "memory_share": None if missed is None else 1.0 - missed / requested,
        "disk_reads_per_second": state.rates.total(shards, "disk_reads", now),
        "disk_wait_share": min(1.0, max(waits)),
    }


def _read_by_dead(state: JobState) -> int:
    """Count the settled examples of dead readers; the rest is read again."""
    trainers = [trainer.info.name for trainer in state.members.everyone("trainer")]
    dead = [reader.info.name for reader in state.members.everyone("reader") if not reader.alive]
    return sum(state.ledger.known_deliveries(reader, trainer) for reader in dead for trainer in trainers)


def _ledger_figures(state: JobState) -> LedgerFigures:
    totals = state.ledger.totals
    read = sum_of(state.members.alive("reader"), "read_examples") + _read_by_dead(state)
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
