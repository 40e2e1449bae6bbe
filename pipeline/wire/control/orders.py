"""Requests of the coordinator: to nodes, and to those that watch a job."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from ...checkpoint.files import FileEntry
from ...data.span import Span
from ...errors import ExitCode
from ..field_checks import MAX_INTEGER, Count, Counts, Examples, Items, Seconds
from .base import Done, Reply, Request, Values
from .messages import BatchIds

MAX_FILES = 1 << 16
MAX_SPANS = 1 << 16
MAX_RANGES = 1 << 14
FLOAT_BYTES = 4

FileEntries: TypeAlias = Annotated[tuple[FileEntry, ...], Items(MAX_FILES)]
# Ranges of batches: epoch, span, first number, number after the last.
BatchRanges: TypeAlias = Annotated[tuple[tuple[Count, Count, Count, Count], ...], Items(MAX_RANGES)]


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """One node of the job."""

    name: str
    role: str
    index: Count
    token: str
    endpoint: str


@dataclass(frozen=True, slots=True)
class GroupView:
    """Members of the trainers' group in one generation."""

    generation: Count
    members: tuple[Count, ...]


@dataclass(frozen=True, slots=True)
class ConnectPeers(Request[Done]):
    """All nodes of the job; reply once connected.

    With `late` the node joins a running job: a sync node then takes the mean of the trainers' seeds, and a
    trainer does not send the center its first value.
    """

    members: tuple[MemberInfo, ...]
    group: GroupView
    late: bool = False


@dataclass(frozen=True, slots=True)
class Begin(Request[Done]):
    """Start of training."""

    examples: Count = 0
    progressive: Annotated[tuple[tuple[Count, Count], ...], Items(MAX_SPANS)] = ()


@dataclass(frozen=True, slots=True)
class NodeLost(Request[Done]):
    """A node died, or left as it was told to."""

    token: str
    role: str
    name: str
    left: bool = False


@dataclass(frozen=True, slots=True)
class DrainReader(Request[Done]):
    """Train what a lost reader has delivered, and accept no more of it.

    The reply comes when the coordinator has recorded all of these batches.
    """

    name: str


@dataclass(frozen=True, slots=True)
class ReaderJoined(Request[Done]):
    """A reader has joined the running job; the trainer connects to it."""

    member: MemberInfo


@dataclass(frozen=True, slots=True)
class TrainerJoined(Request[Done]):
    """A trainer joins the running job; accept its messages."""

    member: MemberInfo


@dataclass(frozen=True, slots=True)
class SyncReplaced(Request[Done]):
    """A sync node replaced a dead one in a slice.

    The reply comes when the trainer has sent the new node its replica's slice.
    """

    number: Count
    member: MemberInfo


@dataclass(frozen=True, slots=True)
class ShardReplaced(Request[Done]):
    """An embedding node replaced a dead one; resend unanswered requests.

    The reply comes when the coordinator has recorded all batches that the trainer had pushed before.
    """

    member: MemberInfo


@dataclass(frozen=True, slots=True)
class FindLacking(Request["LackingBatches"]):
    """Find the batches in these ranges that the node lacks."""

    ranges: BatchRanges

    def require(self, reply: LackingBatches) -> None:
        """See `Request`: what a node lacks is among what it was asked for."""
        if reply.examined > len(self.ranges):
            raise ValueError(f"{reply.examined} ranges examined of {len(self.ranges)}")
        asked = sorted(self.ranges[: reply.examined])
        for lacking in reply.ranges:
            place = bisect_right(asked, (*lacking[:3], MAX_INTEGER)) - 1
            span, start, stop = lacking[:2], *lacking[2:]
            if place < 0 or asked[place][:2] != span or not start < stop <= asked[place][3]:
                raise ValueError(f"it lacks batches {start} to {stop} of {span}, which it was not asked for")


@dataclass(frozen=True, slots=True)
class LackingBatches(Reply):
    """Batches that the node lacks, among the first `examined` ranges."""

    ranges: BatchRanges
    examined: Count


@dataclass(frozen=True, slots=True)
class StartNode(Request[Done]):
    """Start another node, which joins the running job.

    The reply comes when its process has started. `token` is the new node's.
    """

    role: str
    token: str


@dataclass(frozen=True, slots=True)
class MoreSpans(Request[Done]):
    """More spans are available to read."""


@dataclass(frozen=True, slots=True)
class CountDelivered(Request["Delivered"]):
    """How many examples to train the reader has delivered so far, to the trainers of these tokens."""

    tokens: tuple[str, ...]

    def require(self, reply: Delivered) -> None:
        """See `Request`: one count for each token."""
        if len(reply.examples) != len(self.tokens):
            raise ValueError(f"{len(reply.examples)} counts for {len(self.tokens)} trainers")


@dataclass(frozen=True, slots=True)
class Delivered(Reply):
    """The examples delivered to each trainer, in the order of the request."""

    examples: tuple[Examples, ...]


@dataclass(frozen=True, slots=True)
class SetGroup(Request[Done]):
    """New group of the trainers."""

    group: GroupView


@dataclass(frozen=True, slots=True)
class PauseTraining(Request[Done]):
    """Pause of training during a validation, or its end.

    A request for a pause that has ended changes nothing.
    """

    number: Count
    paused: bool


@dataclass(frozen=True, slots=True)
class Drain(Request["DrainReply"]):
    """End of deliveries or training.

    Attributes:
        sequences: for trainers, the last sequence by reader and worker.
        hurry: do not wait for slow rounds.
        batches: for embedding nodes, the batches that a dead trainer returned and that were left out.
        leaving: only this trainer ends, and readers take back its untrained batches.
    """

    sequences: dict[str, dict[str, Count]]
    hurry: bool = False
    batches: BatchIds = ()
    leaving: bool = False

    def require(self, reply: DrainReply) -> None:
        """See `Request`: it applied only what it was asked for."""
        if others := set(reply.applied_of) - set(self.batches):
            raise ValueError(f"it applied batch {tuple(min(others))}, which it was not asked for")


@dataclass(frozen=True, slots=True)
class DrainReply(Reply):
    """The node's last counts; fields of other roles stay empty.

    Attributes:
        sequences: a reader's last sequences by worker.
        in_flight: number of a trainer's examples that were delivered but not trained.
        progressive: a trainer's sums over batches scored before their step, float64.
        applied_of: the batches of the request that an embedding node had applied.
        stopped: whether all of a trainer's workers have stopped; otherwise `in_flight` and `progressive` lack
            what the others have.
    """

    counts: Counts
    sequences: dict[str, Count]
    in_flight: Examples = 0
    progressive: Values = b""
    applied_of: BatchIds = ()
    stopped: bool = True


@dataclass(frozen=True, slots=True)
class Finalize(Request["FinalizeReply"]):
    """Finalize after training, with a last round if `closing_round`."""

    closing_round: bool


@dataclass(frozen=True, slots=True)
class FinalizeReply(Reply):
    """The trainer's closing round, and its share of the final model."""

    counts: Counts
    complete: bool
    model_ready: bool
    model_digest: str = ""
    model_rounds: Count = 0


@dataclass(frozen=True, slots=True)
class ReadReplica(Request["ReplicaValues"]):
    """Read elements of a replica or an optimizer state."""

    start: Count
    stop: Count
    name: str = ""

    def require(self, reply: ReplicaValues) -> None:
        """See `Request`: as many elements as were asked for."""
        elements = self.stop - self.start
        if len(reply.values) != FLOAT_BYTES * elements:
            raise ValueError(f"{len(reply.values)} bytes for {elements} elements")


@dataclass(frozen=True, slots=True)
class WriteReplica(Request[Done]):
    """Write elements of a replica or an optimizer state, before training."""

    start: Count
    values: Values
    name: str = ""


@dataclass(frozen=True, slots=True)
class TakeCenter(Request["TakeCenterReply"]):
    """Take the weights of the center, before training: no other trainer lives.

    The optimizer's state is that of the run's last checkpoint, if there is one.
    """


@dataclass(frozen=True, slots=True)
class TakeCenterReply(Reply):
    """The trainer has the weights; `optimizer` says in words which optimizer state."""

    optimizer: str


@dataclass(frozen=True, slots=True)
class SampleReplica(Request["ReplicaSample"]):
    """Every `stride`-th element of a replica."""

    stride: Count


@dataclass(frozen=True, slots=True)
class ReplicaSample(Reply):
    """Sampled elements of a replica."""

    values: Values


@dataclass(frozen=True, slots=True)
class ReplicaValues(Reply):
    """Elements of a replica, float32."""

    values: Values


@dataclass(frozen=True, slots=True)
class WriteCheckpoint(Request["WriteCheckpointReply"]):
    """Write the node's part of a checkpoint.

    Attributes:
        running: training continues meanwhile; a shard may write changed rows only.
        dense: a trainer also writes the model that `model` names, and the algorithm's state.
        yields: training does not wait for this, so the writing yields to it.
    """

    directory: str
    model: str
    running: bool = False
    dense: bool = False
    yields: bool = False


@dataclass(frozen=True, slots=True)
class WriteCheckpointReply(Reply):
    """Files written, and the pause of pushes and lookups."""

    files: FileEntries
    ready: bool = True
    pause_seconds: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class ComposeModel(Request["WriteCheckpointReply"]):
    """Compose and write the single model from all parts; `yields` as in `WriteCheckpoint`."""

    directory: str
    model: str
    files: FileEntries
    yields: bool = False


@dataclass(frozen=True, slots=True)
class PrepareEval(Request["PrepareEvalReply"]):
    """Score the next pass with the weights that `model` names."""

    pass_number: Count
    model: str


@dataclass(frozen=True, slots=True)
class PrepareEvalReply(Reply):
    """Whether the trainer has these weights."""

    ready: bool


@dataclass(frozen=True, slots=True)
class Evaluate(Request["EvaluateReply"]):
    """Send these spans to the trainers of these tokens."""

    pass_number: Count
    tokens: tuple[str, ...]
    spans: Annotated[tuple[Span, ...], Items(MAX_SPANS)]


@dataclass(frozen=True, slots=True)
class EvaluateReply(Reply):
    """All of the pass is scored."""

    examples: Examples
    bad_rows: Examples


TOP_PIECE_BYTES: Final = 1 << 20
"""The sums of MAX_LABELS labels and so many bytes fit into a message."""


@dataclass(frozen=True, slots=True)
class GetEvalSums(Request["EvalSums"]):
    """A trainer's sums of a pass, with a piece of those of groups; from 0 on they are collected anew."""

    pass_number: Count
    start: Count = 0


@dataclass(frozen=True, slots=True)
class EvalSums(Reply):
    """Float64 sums, see `QualitySums`, and a piece of the first rows of groups, see `TopKSums`.

    A piece has at most TOP_PIECE_BYTES, and all of them `top_bytes`, 0 without groups. The sums come with the
    first piece.
    """

    sums: Values
    top: Values = b""
    top_bytes: Count = 0


@dataclass(frozen=True, slots=True)
class Finish(Request["FinishReply"]):
    """End the node with this exit code."""

    exit_code: ExitCode
    why: str


@dataclass(frozen=True, slots=True)
class FinishReply(Reply):
    """The node's last counts."""

    counts: Counts


@dataclass(frozen=True, slots=True)
class JobEnded(Request[Done]):
    """The job has ended; sent to subscribers."""

    outcome: str
