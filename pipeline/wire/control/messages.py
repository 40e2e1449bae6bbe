"""Requests to the coordinator from nodes, the supervisor and watchers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from ...data.span import Span
from ...errors import ExitCode
from ...types import BatchId
from ..field_checks import Count, Items, Real, Seconds
from .base import MAX_BATCHES, Done, Reply, Request

BatchIds: TypeAlias = Annotated[tuple[BatchId, ...], Items(MAX_BATCHES)]


@dataclass(frozen=True, slots=True)
class Hello(Request["HelloReply"]):
    """A node asks to join the job."""

    role: str
    token: str
    digest: str
    endpoint: str
    pid: Count
    host: str


@dataclass(frozen=True, slots=True)
class HelloReply(Reply):
    """Name and place of the node, and the table plan.

    `late` says that the job runs already; an embedding node then takes the place of a dead one.
    """

    name: str
    index: Count
    folder: str
    plan: dict[str, Any]
    late: bool = False


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts of a ready node; fields of other roles stay empty.

    Attributes:
        rows: that an embedding node holds.
        plan_digest: of the tables, as the node splits them.
        pieces: table, start, stop of each of an embedding node's.
        weights_digest: of a trainer's first weights.
        fresh_tables, fresh_parameters: what the checkpoint that the job starts from did not have.
        start_digest: of that checkpoint, as the node read it.
        checkpoint_bytes: of the node's part of a checkpoint.
        optimizer_state: names and elements of a trainer's, which another one may begin with.
        recenters: whether a lost slice of the center may be made anew, from the replicas.
        elastic: the elastic rate of a trainer's algorithm, and that of the closest replicas; None if it may
            not change.
        restored_batches: that the shard of a run that goes on had applied.
    """

    rows: Count = 0
    plan_digest: str = ""
    pieces: tuple[tuple[int, int, int], ...] = ()
    dense_elements: Count = 0
    precision: str = ""
    weights_digest: str = ""
    fresh_tables: tuple[str, ...] = ()
    fresh_parameters: Annotated[tuple[str, ...], Items(MAX_BATCHES)] = ()
    start_digest: str = ""
    checkpoint_bytes: Count = 0
    restored_batches: Count = 0
    model_origin: str = ""
    needs_center: bool = False
    recenters: bool = False
    optimizer_state: Annotated[tuple[tuple[str, Count], ...], Items(MAX_BATCHES)] = ()
    needs_peers: bool = False
    elastic: tuple[Real, Real] | None = None


@dataclass(frozen=True, slots=True)
class Ready(Request[Done]):
    """The node can meet the others."""

    facts: NodeFacts


@dataclass(frozen=True, slots=True)
class NextSpan(Request["NextSpanReply"]):
    """A reader asks for a piece of the input."""


@dataclass(frozen=True, slots=True)
class SpanGrant:
    """A span to read, without the batches in `skip`.

    These are runs, each from its first number to before its last. The batches of a `replay` are trained, and
    a replaced embedding node lacks them.
    """

    epoch: Count
    span: Span
    skip: Annotated[tuple[tuple[Count, Count], ...], Items(MAX_BATCHES)]
    replay: bool = False


@dataclass(frozen=True, slots=True)
class NextSpanReply(Reply):
    """The span; None when there are no more."""

    grant: SpanGrant | None


@dataclass(frozen=True, slots=True)
class SpanRead(Request[Done]):
    """A reader has cut a whole span.

    Attributes:
        first_bad_row: where the reader's first malformed row is, and why it is one; "" for none.
    """

    epoch: Count
    span: Count
    batches: Count
    examples: Count
    bad_rows: Count
    replay: bool = False
    first_bad_row: str = ""


@dataclass(frozen=True, slots=True)
class TrainedBatch:
    """A trained batch, with weighted sums over its examples."""

    id: BatchId
    examples: Count
    loss_sum: Real
    positives: Real
    weight: Real
    age_seconds: Real


@dataclass(frozen=True, slots=True)
class LeftOutBatch:
    """A batch that is not finite, and why."""

    id: BatchId
    examples: Count
    why: str


@dataclass(frozen=True, slots=True)
class TrainedBatches(Request[Done]):
    """Trained and left-out batches; the reply follows once recorded."""

    batches: tuple[TrainedBatch, ...]
    left_out: tuple[LeftOutBatch, ...]
    synced_iterations: Count


@dataclass(frozen=True, slots=True)
class HeldBatch:
    """An unconfirmed batch that was sent to a dead trainer."""

    id: BatchId
    examples: Count
    replay: bool = False


@dataclass(frozen=True, slots=True)
class ReturnBatches(Request["ReturnBatchesReply"]):
    """A reader takes back a dead trainer's batches."""

    token: str
    batches: Annotated[tuple[HeldBatch, ...], Items(MAX_BATCHES)]


@dataclass(frozen=True, slots=True)
class ReturnBatchesReply(Reply):
    """Those to train again."""

    again: BatchIds


@dataclass(frozen=True, slots=True)
class ReportSlowPeer(Request[Done]):
    """A trainer timed out waiting for a peer in this generation."""

    generation: Count
    index: Count


@dataclass(frozen=True, slots=True)
class RejoinGroup(Request[Done]):
    """A trainer that was left out of the group is there again."""


@dataclass(frozen=True, slots=True)
class NodeFailed(Request[Done]):
    """A node ends with an error.

    Attributes:
        bad_rows: of a reader, how many malformed rows it has found.
    """

    what: str
    exit_code: ExitCode
    bad_rows: Count = 0


@dataclass(frozen=True, slots=True)
class Leave(Request[Done]):
    """A node wants to leave the running job."""


@dataclass(frozen=True, slots=True)
class Interrupt(Request[Done]):
    """A node was asked to stop by a signal."""


@dataclass(frozen=True, slots=True)
class ChildExited(Request["ChildExitedReply"]):
    """A supervised process ended, with a description and exit code.

    `successor` is the token of the one that the supervisor would start in its place; empty if none.
    """

    token: str
    role: str
    how: str
    code: ExitCode
    successor: str = ""


@dataclass(frozen=True, slots=True)
class ChildExitedReply(Reply):
    """The job's need for another in its place."""

    replace: bool


@dataclass(frozen=True, slots=True)
class Scale(Request["ScaleReply"]):
    """The job is to have so many nodes of a role from now on.

    The reply comes when those that are missing take part, or those that are too many have left.
    """

    role: str
    count: Count


@dataclass(frozen=True, slots=True)
class ScaleReply(Reply):
    """Names of the nodes that have joined and left, and how many there are."""

    joined: Annotated[tuple[str, ...], Items(MAX_BATCHES)]
    left: Annotated[tuple[str, ...], Items(MAX_BATCHES)]
    count: Count


@dataclass(frozen=True, slots=True)
class GetStatus(Request["StatusReply"]):
    """The job as it is now.

    Attributes:
        curves: of each, the step and number of the points that the asker has; None for no curves.
        incidents: the number of the last one that it knows.
        subscribe_end: whether to send `job_ended` when the job ends.
    """

    curves: dict[str, tuple[Seconds, Count]] | None = None
    incidents: Count = 0
    subscribe_end: bool = False


@dataclass(frozen=True, slots=True)
class StatusReply(Reply):
    """The status (see `watch.status.Status`), and dead nodes' tokens."""

    status: dict[str, Any]
    dead: Annotated[tuple[str, ...], Items(MAX_BATCHES)] = ()
