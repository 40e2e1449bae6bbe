"""Changes of a job's state, as the journal records them.

The ledger's file keeps them in order, each in the transaction of its effect. Applied again to a new
`JobState`, they give the state of the dead coordinator and its replies. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

from ....pipeline.data.formats.parquet import IdClass
from ....pipeline.data.span import Span, to_runs
from ....pipeline.errors import ProtocolError
from ....pipeline.types import BatchId
from ....pipeline.wire.control.base import MAX_BATCHES, Done, NamedRecords, Reply
from ....pipeline.wire.control.messages import (
    UNKNOWN_DELIVERY,
    DeliveryKey,
    Hello,
    HelloReply,
    NextSpan,
    NextSpanReply,
    Ready,
    ReturnBatches,
    ReturnBatchesReply,
    SpanGrant,
    SpanRead,
    TrainedBatches,
)
from ....pipeline.wire.control.orders import GroupView
from ....pipeline.wire.field_checks import MOST_EXAMPLES, Count, Counts, Items, Real, Seconds
from ...runtime.span_proofs import proof_of
from ..ledger.open_spans import OpenSpan
from ..ledger.records import LedgerTables
from .job import JobState
from .outcome import Conclusion, Scored, Stop

ROUNDING: Final = 1e-3

# More than a message may have, and as many as a value of SQLite can.
MAX_ADDED_SPANS: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class JobBegan:
    """The coordinator started, with its address, table plan and label rates.

    Attributes:
        unix_seconds: when, by the wall clock.
        kernel: the running kernel (`running_kernel`), whose monotonic clock said `monotonic_seconds` then.
        grant_key: see `InputFacts`.
    """

    unix_seconds: Seconds
    bound: str
    plan: dict[str, Any]
    how: str
    label_rates: tuple[Real, ...] = ()
    kernel: str = ""
    monotonic_seconds: Seconds = 0.0
    grant_key: str = ""


@dataclass(frozen=True, slots=True)
class JobPlanned:
    """What the job is of: the spans of each part, and the checkpoint that it resumes.

    Both are as they were at its start, whatever has come or gone since. Of a job that follows its input,
    the spans to train on are those of `SpansAdded`.

    Attributes:
        progressive: see `InputPlan`.
        resumes: digest of the checkpoint; "" if it resumes none.
    """

    train: Annotated[tuple[Span, ...], Items(MAX_ADDED_SPANS)]
    validation: Annotated[tuple[Span, ...], Items(MAX_ADDED_SPANS)]
    test: Annotated[tuple[Span, ...], Items(MAX_ADDED_SPANS)]
    progressive: Annotated[tuple[Count, ...], Items(MAX_ADDED_SPANS)]
    id_classes: dict[str, IdClass]
    resumes: str


@dataclass(frozen=True, slots=True)
class CoordinatorReplaced:
    """Another coordinator took over."""


@dataclass(frozen=True, slots=True)
class MembersStarted:
    """All nodes of the job have joined, and it starts."""


@dataclass(frozen=True, slots=True)
class TrainingBegan:
    """Training began; by node, the CPU seconds used before."""

    cpu_seconds: dict[str, Real]


@dataclass(frozen=True, slots=True)
class TrainingEnded:
    """Training has ended: why before the end of its input, or empty."""

    ended_early: str


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The job is to stop, for this reason."""

    stop: Stop


@dataclass(frozen=True, slots=True)
class JobConcluded:
    """The job's end is decided, and its nodes will be told."""

    conclusion: Conclusion


@dataclass(frozen=True, slots=True)
class NodeBegan:
    """A late node became active."""

    token: str


@dataclass(frozen=True, slots=True)
class NodeLeaves:
    """A node was told to leave the running job."""

    token: str


@dataclass(frozen=True, slots=True)
class NodeHasLeft:
    """A node has left, with these last counts."""

    token: str
    counts: Counts


@dataclass(frozen=True, slots=True)
class NodeDied:
    """A node was declared dead; its last heartbeat had these counts."""

    token: str
    why: str
    counts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class GroupFormed:
    """The group of trainers has changed."""

    view: GroupView


@dataclass(frozen=True, slots=True)
class SpansReadAgain:
    """The unfinished spans of a dead reader are handed out again."""

    reader: str


@dataclass(frozen=True, slots=True)
class SpansAdded:
    """Spans of new files, with the id classes of all files so far.

    A job that follows its input begins with one of these. If it is resumed, these are all spans so far.
    """

    spans: Annotated[tuple[Span, ...], Items(MAX_ADDED_SPANS)]
    id_classes: dict[str, IdClass]


@dataclass(frozen=True)
class InputEnded:
    """No more files are added."""


@dataclass(frozen=True, slots=True)
class ShardRestored:
    """The trained batches that a replacement shard lacks are known."""

    number: Count
    lacking: Annotated[tuple[tuple[Count, Count, Count, Count], ...], Items(MAX_BATCHES)]


@dataclass(frozen=True, slots=True)
class BestTakenOver:
    """The best checkpoint of the resumed run became this run's."""

    scored: Scored


@dataclass(frozen=True, slots=True)
class CheckpointScored:
    scored: Scored


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """A checkpoint was written while the job trained."""


@dataclass(frozen=True)
class TrainingPaused:
    """Training waits for a validation."""


Write: TypeAlias = Callable[[LedgerTables], None]


@dataclass(frozen=True)
class Effect:
    """Effect of a request: its reply and its ledger rows.

    Attributes:
        lasts: whether the state has changed.
    """

    reply: Reply
    write: Write | None = None
    lasts: bool = True


def _join(state: JobState, token: str, hello: Hello) -> Effect:
    known = state.members.find(token) is not None
    member = state.join(hello.role, token, hello.digest, hello.endpoint, hello.host, hello.pid, hello.former)
    reply = HelloReply(
        member.info.name,
        member.info.index,
        str(state.absolute_folder),
        state.placement.plan.to_body(),
        late=not member.begun,
        label_rates=state.training.input.label_rates,
        grant_key=state.training.input.grant_key if hello.role == "trainer" else "",
    )
    return Effect(reply, lasts=not known)


def _ready(state: JobState, token: str, ready: Ready) -> Effect:
    state.members.require(token).get_ready(ready.facts)
    return Effect(Done())


def _next_span(state: JobState, token: str, request: NextSpan) -> Effect:  # noqa: ARG001
    ledger, reader = state.ledger, state.members.require(token).info.name
    if (replay := ledger.grant_replay(reader)) is not None:
        proof = _proof(state, reader, replay.epoch, replay.span)
        grant = SpanGrant(replay.epoch, replay.span, tuple(to_runs(replay.skip)), replay=True, proof=proof)
        return Effect(NextSpanReply(grant))
    granted = ledger.grant(reader)
    if granted is None:
        return Effect(NextSpanReply(None), lasts=False)
    epoch, span = granted
    skip = tuple(to_runs(ledger.skip_of(epoch, span.number)))
    grant = SpanGrant(epoch, span, skip, proof=_proof(state, reader, epoch, span))
    return Effect(NextSpanReply(grant), lambda tables: tables.grant(epoch, span, reader))


def _proof(state: JobState, reader: str, epoch: int, span: Span) -> bytes:
    return proof_of(
        state.training.input.grant_key, reader, epoch, span.number, _most_rows(state, span.number)
    )


def _span_read(state: JobState, token: str, read: SpanRead) -> Effect:
    if read.replay:
        state.ledger.replay_read(state.members.require(token).info.name, read.epoch, read.span)
        return Effect(Done())
    most = state.job.trainer.batch
    fits = read.batches <= read.examples <= read.batches * most
    if not fits or read.examples > _most_rows(state, read.span):
        raise ValueError(
            f"span {read.span} with {read.examples} examples in {read.batches} batches of at most {most}"
        )
    _require_rows(state, read)
    counts = {"batches": read.batches, "examples": read.examples, "bad_rows": read.bad_rows}
    state.ledger.span_read(read.epoch, read.span, **counts, dropped_negatives=read.dropped_negatives)
    state.training.input.size.span_read(read.span, read.examples, read.bad_rows)
    return Effect(Done(), lambda tables: tables.span_read(read.epoch, read.span, **counts))


def _require_rows(state: JobState, read: SpanRead) -> None:
    """Raise ValueError for more rows of all kinds than a span has."""
    # Spans sorted by time are counted when planned; the first of them reports the malformed rows of all.
    is_sorted = state.ledger.queue[read.span].kind == "sorted"
    rows, most = read.examples + read.bad_rows + read.dropped_negatives, _most_rows(state, read.span)
    if rows > most and not is_sorted:
        raise ValueError(
            f"span {read.span} with {rows} rows, {read.bad_rows} malformed; it has at most {most}"
        )


def _most_rows(state: JobState, number: int) -> int:
    """Return how many rows a span has at most.

    Of some kinds its size says nothing. Raises ValueError for a span that there is not.
    """
    try:
        span = state.ledger.queue[number]
    except KeyError:
        raise ValueError(f"there is no span {number}") from None
    return span.stop - span.start if span.kind in ("bytes", "offsets", "sorted") else MOST_EXAMPLES


def _require_batch(state: JobState, batch: BatchId, examples: int) -> OpenSpan:
    """Return the span of a batch; raise ValueError for one that no reader can have cut."""
    span = state.ledger.require_batch(batch, examples)
    if batch.number >= _most_rows(state, batch.span):
        raise ValueError(f"batch {tuple(batch)} is not in its span")
    if examples > (most := state.job.trainer.batch):
        raise ValueError(f"batch {tuple(batch)} with {examples} examples; a batch has at most {most}")
    return span


def _require_trained(state: JobState, trainer: str, request: TrainedBatches) -> None:
    """Raise ValueError for what cannot be, before any of it is recorded."""
    before = set[DeliveryKey]()
    for delivery in request.deliveries:
        if delivery in before or state.ledger.deliveries.has(trainer, delivery):
            reader, worker, sequence = delivery
            raise ValueError(f"delivery {sequence} of {reader} to worker {worker} is acknowledged twice")
        if delivery != UNKNOWN_DELIVERY:
            before.add(delivery)
    for batch in request.batches:
        _require_batch(state, batch.id, batch.examples)
        most = max(positives for _, positives in ((batch.loss_sum, batch.positives), *batch.others))
        # Sums of float32 weights, in another order.
        if most > batch.weight * (1 + ROUNDING):
            raise ValueError(
                f"batch {tuple(batch.id)} has positives of {most:g}, and a weight of {batch.weight:g}"
            )
    for left_out in request.left_out:
        _require_batch(state, left_out.id, left_out.examples)


def _trained(state: JobState, token: str, request: TrainedBatches) -> Effect:
    member = state.members.require(token)
    _require_trained(state, member.info.name, request)
    rows = state.training.acknowledge(member, request.batches, request.synced_iterations, state.seconds())
    left_out = state.training.leave_out(member.info.name, request.left_out)

    def write(tables: LedgerTables) -> None:
        tables.acknowledge(rows)
        tables.left_out(left_out)

    return Effect(Done(), write)


def _return_batches(state: JobState, token: str, request: ReturnBatches) -> Effect:
    dead = state.members.find(request.token)
    if dead is None or dead.alive:
        raise ProtocolError("only a dead trainer's batches can be returned")
    sizes = {batch.id: batch.examples for batch in request.batches}
    for batch, examples in sizes.items():
        if refusal := _require_batch(state, batch, examples).refusal(batch.number):
            raise ValueError(f"batch {tuple(batch)}: {refusal}")
    replays = {batch.id for batch in request.batches if batch.replay}
    reader, trainer = state.members.require(token).info.name, dead.info.name
    again = state.ledger.return_batches(trainer, sizes.items(), replays, reader)
    rows = [(b.epoch, b.span, b.number, sizes[b], trainer) for b in again]
    return Effect(ReturnBatchesReply(tuple(again)), lambda tables: tables.returned(rows))


REQUESTS: Final[Mapping[type[Any], Callable[[JobState, str, Any], Effect]]] = {
    Hello: _join,
    Ready: _ready,
    NextSpan: _next_span,
    SpanRead: _span_read,
    TrainedBatches: _trained,
    ReturnBatches: _return_batches,
}
"""Requests of nodes that change the state.

All raise ShadowSyncError or ValueError for an impossible request.
"""


def _died(state: JobState, change: NodeDied) -> None:
    if (member := state.members.find(change.token)) is not None:
        member.record_heartbeat(change.counts)
        state.mark_dead(change.token, change.why)


DECISIONS: Final[Mapping[type[Any], Callable[[JobState, Any], object]]] = {
    JobBegan: lambda state, change: None,  # noqa: ARG005
    JobPlanned: lambda state, change: None,  # noqa: ARG005
    CoordinatorReplaced: lambda state, change: state.lifecycle.replace_coordinator(),  # noqa: ARG005
    MembersStarted: lambda state, change: state.start_members(),  # noqa: ARG005
    TrainingBegan: lambda state, change: state.lifecycle.begin_training(change.cpu_seconds),
    TrainingEnded: lambda state, change: state.lifecycle.end_training(change.ended_early),
    StopRequested: lambda state, change: state.lifecycle.request_stop(change.stop),
    JobConcluded: lambda state, change: state.lifecycle.conclude(change.conclusion),
    NodeBegan: lambda state, change: state.members.require(change.token).begin(),
    NodeLeaves: lambda state, change: state.members.require(change.token).prepare_to_leave(),
    NodeHasLeft: lambda state, change: state.leave(state.members.require(change.token), change.counts),
    NodeDied: _died,
    GroupFormed: lambda state, change: state.group.adopt(change.view),
    SpansReadAgain: lambda state, change: state.ledger.read_again(change.reader),
    SpansAdded: lambda state, change: state.add_spans(change.spans, change.id_classes),
    InputEnded: lambda state, change: state.ledger.queue.end(),  # noqa: ARG005
    ShardRestored: lambda state, change: state.ledger.owed.restore_shard(change.number, change.lacking),
    BestTakenOver: lambda state, change: state.checkpointing.begin_with(change.scored),
    CheckpointScored: lambda state, change: state.checkpointing.scored.append(change.scored),
    CheckpointWritten: lambda state, change: state.checkpointing.count_written(),  # noqa: ARG005
    TrainingPaused: lambda state, change: state.checkpointing.pause(),  # noqa: ARG005
}
"""Decisions of the coordinator, each with the function that applies it again."""

RECORDS: Final = NamedRecords[Any]({kind.__name__: kind for kind in (*REQUESTS, *DECISIONS)})
