"""Requests to the coordinator from nodes, the supervisor and watchers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

from ...data.span import Span
from ...errors import ExitCode
from ...types import MAX_LABELS, BatchId
from ..field_checks import Bounds, Count, Examples, Items, Seconds
from .base import MAX_BATCHES, Done, Reply, Request

BatchIds: TypeAlias = Annotated[tuple[BatchId, ...], Items(MAX_BATCHES)]


DeliveryKey: TypeAlias = tuple[str, Count, Count]
"""A delivery to a trainer: its reader, the worker that got it, and its sequence there, from 1."""

# Journals of before 2026-11-29 do not say of which delivery an acknowledgement is.
UNKNOWN_DELIVERY: Final[DeliveryKey] = ("", 0, 0)

EVENT_CHARACTERS: Final = 500
"""Most characters of an event; an error in a user's model may have more."""

# Sums over many messages of these stay finite.
MOST_SUM: Final = 1e48
Sum = Annotated[float, Bounds(0.0, MOST_SUM)]
Rate = Annotated[float, Bounds(0.0, 1.0)]


@dataclass(frozen=True, slots=True)
class Hello(Request["HelloReply"]):
    """A node asks to join the job.

    `former` is the token that it had before it was declared dead, "" for a new node.
    """

    role: str
    token: str
    digest: str
    endpoint: str
    pid: Count
    host: str
    former: str = ""


@dataclass(frozen=True, slots=True)
class HelloReply(Reply):
    """Name and place of the node, the table plan, and the labels' rates.

    With `late` the job already runs; an embedding node then replaces a dead one. `label_rates` has each
    label's rate in a sample of the training rows, between 0 and 1; () if no model's output bias starts from
    them. `grant_key` is the key of the proofs in `SpanGrant`, for a trainer; "" for others.
    """

    name: str
    index: Count
    folder: str
    plan: dict[str, Any]
    late: bool = False
    label_rates: Annotated[tuple[Rate, ...], Items(MAX_LABELS)] = ()
    grant_key: str = ""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts of a ready node; fields of other roles stay empty.

    Attributes:
        rows: number of rows of an embedding node.
        plan_digest: digest of the node's plan of the tables.
        pieces: table, start and stop of each piece of an embedding node.
        weights_digest: digest of a trainer's first weights.
        fresh_tables, fresh_parameters: names that the starting checkpoint lacks.
        start_digest: digest of the starting checkpoint, as the node read it.
        checkpoint_bytes: bytes of the node's part of a checkpoint.
        optimizer_state: names and sizes of a trainer's optimizer state, which a joining trainer may copy.
        recenters: whether a lost slice of the center may be rebuilt from the replicas.
        merges: whether the center merges what several trainers send.
        restored_batches: number of batches that the shard had applied before the resume.
    """

    rows: Count = 0
    plan_digest: str = ""
    pieces: tuple[tuple[Count, Count, Count], ...] = ()
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
    merges: bool = False


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

    `skip` has runs of batch numbers, each with its first number and the number after its last. The batches of
    a `replay` were trained before, but a replacement embedding node lacks them. `proof` goes with each of its
    batches (`nodes/runtime/span_proofs.py`).
    """

    epoch: Count
    span: Span
    skip: Annotated[tuple[tuple[Count, Count], ...], Items(MAX_BATCHES)]
    replay: bool = False
    proof: bytes = b""


@dataclass(frozen=True, slots=True)
class NextSpanReply(Reply):
    """The span; None when there are no more."""

    grant: SpanGrant | None


@dataclass(frozen=True, slots=True)
class SpanRead(Request[Done]):
    """A reader has cut a whole span.

    Attributes:
        first_bad_row: place of the reader's first malformed row, and its fault; "" for none.
        dropped_negatives: number of negatives that were not kept; `examples` does not include them.
    """

    epoch: Count
    span: Count
    batches: Examples
    examples: Examples
    bad_rows: Examples
    replay: bool = False
    first_bad_row: str = ""
    dropped_negatives: Examples = 0


@dataclass(frozen=True, slots=True)
class TrainedBatch:
    """A trained batch, with weighted sums over its examples.

    Attributes:
        others: sums of losses and of positives of each further label.
        delivery: which delivery of the batch it is.
    """

    id: BatchId
    examples: Examples
    loss_sum: Sum
    positives: Sum
    weight: Sum
    age_seconds: Seconds
    others: Annotated[tuple[tuple[Sum, Sum], ...], Items(MAX_LABELS)] = ()
    delivery: DeliveryKey = UNKNOWN_DELIVERY


@dataclass(frozen=True, slots=True)
class LeftOutBatch:
    """A left-out batch, whose loss or gradients are not finite, and why."""

    id: BatchId
    examples: Examples
    why: str
    delivery: DeliveryKey = UNKNOWN_DELIVERY


@dataclass(frozen=True, slots=True)
class TrainedBatches(Request[Done]):
    """Trained and left-out batches; the reply follows once recorded."""

    batches: tuple[TrainedBatch, ...]
    left_out: tuple[LeftOutBatch, ...]
    synced_iterations: Count

    @property
    def deliveries(self) -> list[DeliveryKey]:
        """Those of all of its batches."""
        left_out = [batch.delivery for batch in self.left_out]
        return [batch.delivery for batch in self.batches] + left_out


@dataclass(frozen=True, slots=True)
class HeldBatch:
    """An unconfirmed batch that was sent to a dead trainer."""

    id: BatchId
    examples: Examples
    replay: bool = False


@dataclass(frozen=True, slots=True)
class ReturnBatches(Request["ReturnBatchesReply"]):
    """A reader takes back a dead trainer's batches."""

    token: str
    batches: Annotated[tuple[HeldBatch, ...], Items(MAX_BATCHES)]


@dataclass(frozen=True, slots=True)
class ReturnBatchesReply(Reply):
    """The batches to train again."""

    again: BatchIds


@dataclass(frozen=True, slots=True)
class ReportSlowPeer(Request[Done]):
    """A trainer timed out waiting for a peer in this generation."""

    generation: Count
    index: Count


@dataclass(frozen=True, slots=True)
class ReportReader(Request[Done]):
    """A reader delivered to this trainer what cannot be."""

    reader: str
    why: str


@dataclass(frozen=True, slots=True)
class ReportEvent(Request[Done]):
    """A trainer or an embedding node has something to say in the events of the job.

    `what` has at most EVENT_CHARACTERS.
    """

    what: str


@dataclass(frozen=True, slots=True)
class RejoinGroup(Request[Done]):
    """A trainer that was excluded from the group is back."""


@dataclass(frozen=True, slots=True)
class NodeFailed(Request[Done]):
    """A node ends with an error.

    Attributes:
        bad_rows: number of malformed rows that a reader has found.
    """

    what: str
    exit_code: ExitCode
    bad_rows: Examples = 0


@dataclass(frozen=True, slots=True)
class Leave(Request[Done]):
    """A node wants to leave the running job."""


@dataclass(frozen=True, slots=True)
class Interrupt(Request[Done]):
    """A node was asked to stop by a signal."""


@dataclass(frozen=True, slots=True)
class ChildExited(Request["ChildExitedReply"]):
    """A supervised process ended, with a description and exit code.

    `successor` is the token of the replacement that the supervisor would start; empty if there is none.
    """

    token: str
    role: str
    how: str
    code: ExitCode
    successor: str = ""


@dataclass(frozen=True, slots=True)
class ChildExitedReply(Reply):
    """Whether the job needs a replacement."""

    replace: bool


@dataclass(frozen=True, slots=True)
class Scale(Request["ScaleReply"]):
    """Change the number of nodes of a role.

    The reply comes when the missing nodes have joined, or the surplus ones have left.
    """

    role: str
    count: Count


@dataclass(frozen=True, slots=True)
class ScaleReply(Reply):
    """Names of the nodes that joined and left, and their new number."""

    joined: Annotated[tuple[str, ...], Items(MAX_BATCHES)]
    left: Annotated[tuple[str, ...], Items(MAX_BATCHES)]
    count: Count


@dataclass(frozen=True, slots=True)
class EndInput(Request[Done]):
    """Look for no more files; the job ends once it has trained its own."""


@dataclass(frozen=True, slots=True)
class GetStatus(Request["StatusReply"]):
    """The current state of the job.

    Attributes:
        curves: step and number of the points that the watcher has, by curve; None for no curves.
        incidents: number of the last incident that the watcher knows.
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
