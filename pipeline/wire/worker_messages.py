"""Messages between a trainer and its worker process, by verb.

Messages are frozen dataclasses, checked like those of the control plane (see `field_checks`). They have no
numbers and no replies, because both ends are on one machine, end together, and receive everything in order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, TypeAlias, TypeVar

from ..errors import ExitCode
from ..types import MAX_LABELS, BatchId, Float32Array
from .control.base import MAX_BATCHES, NamedRecords, Values
from .control.orders import MAX_SPANS, MemberInfo
from .control.profile import ProcessTrace
from .field_checks import Count, Counts, Items, Seconds, Size, values_of
from .messages import Delivery, WorkerMessage

# --- from the trainer


@dataclass(frozen=True, slots=True)
class ConnectMembers:
    """All nodes of the job, for the worker to connect to."""

    members: tuple[MemberInfo, ...]


@dataclass(frozen=True, slots=True)
class BeginTraining:
    """Start of training."""

    progressive: Annotated[tuple[tuple[Count, Count], ...], Items(MAX_SPANS)] = ()


@dataclass(frozen=True, slots=True)
class ConfirmBatch:
    """The coordinator has recorded a batch, so its reader may forget it."""

    reader: str
    sequence: Count


@dataclass(frozen=True, slots=True)
class DrainWorker:
    """End of training after the current batch.

    With `leaving`, readers take back the batches that the trainer does not train.
    """

    sequences: dict[str, Count]
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class DropNode:
    """A reader or embedding node is lost: forget it."""

    name: str


@dataclass(frozen=True, slots=True)
class SettleLostReader:
    """Finish a lost reader's batches, and accept no more."""

    name: str


@dataclass(frozen=True, slots=True)
class ConnectReader:
    """A reader has joined: the process connects to it."""

    member: MemberInfo


@dataclass(frozen=True, slots=True)
class ReplaceShard:
    """An embedding node replaced a dead one."""

    member: MemberInfo


@dataclass(frozen=True, slots=True)
class DropSyncNode:
    """The sync node of this token is lost: forget it."""

    token: str


@dataclass(frozen=True, slots=True)
class ReplaceSyncNode:
    """A sync node has taken the slice of this number."""

    number: Count
    member: MemberInfo


@dataclass(frozen=True, slots=True)
class ScorePass:
    """Score this pass with the given weights."""

    pass_number: Count
    use_replica: bool


@dataclass(frozen=True, slots=True)
class CollectSums:
    """The sums of a pass are wanted."""

    pass_number: Count


@dataclass(frozen=True, slots=True)
class GatePass:
    """The worker at the gate may continue."""


@dataclass(frozen=True, slots=True)
class TraceProcess:
    """The process traces itself for so long."""

    seconds: Seconds


@dataclass(frozen=True, slots=True)
class StopProcess:
    """The process ends."""


WorkerOrder: TypeAlias = (
    ConnectMembers
    | BeginTraining
    | ConfirmBatch
    | DrainWorker
    | DropNode
    | SettleLostReader
    | ConnectReader
    | ReplaceShard
    | DropSyncNode
    | ReplaceSyncNode
    | ScorePass
    | CollectSums
    | GatePass
    | TraceProcess
    | StopProcess
)

# --- from the worker


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The process has built its model."""


@dataclass(frozen=True, slots=True)
class BatchAck:
    """Acknowledgement of a batch: trained, or left out.

    A trained batch is acknowledged once every embedding node has answered its push.

    Attributes:
        worker: the worker's place in its trainer.
        left_out: why the batch was left out; "" for a trained batch. A batch that is left out changes neither
            the replica nor an embedding node, and its sums are 0.
        loss_sum: sum over the examples of the log loss before the step, in nats, times the sample weight.
        positives: sum of labels times sample weights.
        weight: sum of the sample weights; `examples` if the job has none.
        finished_at: time by the machine's monotonic clock, which its processes share.
        replay: whether the batch was trained before.
        others: sums of losses and of positives of each further label.
    """

    worker: Count
    reader: str
    sequence: Count
    id: BatchId
    examples: Count
    loss_sum: Size
    positives: Size
    weight: Size
    finished_at: Size
    left_out: str = ""
    replay: bool = False
    others: Annotated[tuple[tuple[Size, Size], ...], Items(MAX_LABELS)] = ()

    @classmethod
    def of(cls, worker: int, reader: str, delivery: Delivery, losses: Sequence[float]) -> BatchAck:
        """Build the acknowledgement of a trained batch.

        `losses` are the mean losses of its labels.
        """
        weights = delivery.weights
        weighted = len(weights) > 0
        weight = float(weights.sum()) if weighted else float(len(delivery.labels))

        def sums(loss: float, labels: Float32Array) -> tuple[float, float]:
            return loss * weight, float((labels * weights).sum() if weighted else labels.sum())

        loss_sum, positives = sums(losses[0], delivery.labels)
        return cls(
            worker=worker,
            reader=reader,
            sequence=delivery.sequence,
            id=delivery.id,
            examples=len(delivery.labels),
            loss_sum=loss_sum,
            positives=positives,
            weight=weight,
            finished_at=time.monotonic(),
            replay=delivery.replay,
            others=tuple(map(sums, losses[1:], delivery.other_labels)),
        )

    @classmethod
    def leaving_out(cls, worker: int, reader: str, delivery: Delivery, why: str) -> BatchAck:
        """Acknowledge a batch that is left out now."""
        batch_id, examples, now = delivery.id, len(delivery.labels), time.monotonic()
        return cls(
            worker, reader, delivery.sequence, batch_id, examples, 0.0, 0.0, 0.0, now, why, delivery.replay
        )


@dataclass(frozen=True, slots=True)
class AckedBatches:
    """Batches that the worker trained or left out."""

    batches: Annotated[tuple[BatchAck, ...], Items(MAX_BATCHES)]


@dataclass(frozen=True, slots=True)
class RefusedReader:
    """A reader delivered what cannot be; nothing more of it is taken."""

    reader: str
    why: str


@dataclass(frozen=True, slots=True)
class WorkerHeartbeat:
    """Counts of the worker, every half second.

    Attributes:
        metrics: counts of the worker; see `WorkerHandle.metrics`.
        process: CPU seconds and memory of the process.
        threads: seconds of CPU and of waiting for a core, by the thread's name.
        sent_bytes, received_bytes, connections: counts of the worker's own client of the center.
    """

    metrics: Counts
    process: Counts
    threads: dict[str, tuple[Seconds, Seconds]]
    sent_bytes: Count = 0
    received_bytes: Count = 0
    connections: dict[str, Count] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CompletedRound:
    """A completed round of the worker with the center."""

    started_iterations: Count
    seconds: Seconds
    cpu_seconds: Seconds
    ended_iterations: Count


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """A round with the center ended; null if incomplete."""

    completed: CompletedRound | None


@dataclass(frozen=True, slots=True)
class GateWork:
    """The worker has a batch again, and waits for `pass`."""


@dataclass(frozen=True, slots=True)
class GateArrive:
    """The worker is at the gate, and waits for `pass`."""


@dataclass(frozen=True, slots=True)
class GateStarve:
    """The worker has no batch."""


@dataclass(frozen=True, slots=True)
class DrainedWorker:
    """Final counts of training."""

    in_flight: Count
    progressive: Values


@dataclass(frozen=True, slots=True)
class SettledReader:
    """All batches of the lost reader are recorded."""

    name: str


@dataclass(frozen=True, slots=True)
class SettledPushes:
    """All earlier pushes to the replaced node are recorded."""

    name: str


@dataclass(frozen=True, slots=True)
class CollectedSums:
    """See `QualitySums`, float64."""

    sums: Values


@dataclass(frozen=True, slots=True)
class TracedProcess:
    """The activities of the process's threads since `trace`."""

    trace: ProcessTrace


@dataclass(frozen=True, slots=True)
class WorkerError:
    """The worker ended with an error."""

    what: str
    exit_code: ExitCode


WorkerReport: TypeAlias = (
    WorkerReady
    | AckedBatches
    | RefusedReader
    | WorkerHeartbeat
    | RoundEnded
    | GateWork
    | GateArrive
    | GateStarve
    | DrainedWorker
    | SettledReader
    | SettledPushes
    | CollectedSums
    | TracedProcess
    | WorkerError
)

# --- verbs

Sent = TypeVar("Sent")


class WorkerVerbs(NamedRecords[Sent]):
    """The verbs of one direction."""

    def encode(self, message: Sent) -> WorkerMessage:
        """Encode a message to send."""
        return WorkerMessage(self.name_of(message), values_of(message))

    def decode(self, message: WorkerMessage) -> Sent:
        """Decode a received message.

        Raises ProtocolError, which names the verb and the field, for one that is not valid.
        """
        return self.decode_values(message.verb, message.body)


ORDERS: Final = WorkerVerbs[WorkerOrder](
    {
        "connect_members": ConnectMembers,
        "begin": BeginTraining,
        "confirm": ConfirmBatch,
        "drain": DrainWorker,
        "drop_node": DropNode,
        "settle_reader": SettleLostReader,
        "connect_reader": ConnectReader,
        "replace_shard": ReplaceShard,
        "drop_sync_node": DropSyncNode,
        "replace_sync": ReplaceSyncNode,
        "evaluate": ScorePass,
        "collect": CollectSums,
        "pass": GatePass,
        "trace": TraceProcess,
        "stop": StopProcess,
    }
)
REPORTS: Final = WorkerVerbs[WorkerReport](
    {
        "ready": WorkerReady,
        "trained": AckedBatches,
        "refused": RefusedReader,
        "heartbeat": WorkerHeartbeat,
        "round": RoundEnded,
        "work": GateWork,
        "arrive": GateArrive,
        "starve": GateStarve,
        "drained": DrainedWorker,
        "settled_reader": SettledReader,
        "settled_pushes": SettledPushes,
        "sums": CollectedSums,
        "traced": TracedProcess,
        "failed": WorkerError,
    }
)
