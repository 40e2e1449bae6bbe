"""The status of a running job or hub: the reply to `status`.

Seconds are since the coordinator's start. A figure that was not measured yet is None, never 0.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ..pipeline.errors import ProtocolError
from ..pipeline.types import first_fault

STATUS_VERSION = 1
# For each curve of a client: its step, and how many points the client has.
Cursor = dict[str, tuple[float, int]]
StatusPoint = Annotated[tuple[float, float], BeforeValidator(tuple)]


class StatusPart(BaseModel):
    """Base of the parts of a status.

    Unknown fields, as from a newer coordinator, are ignored.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")


class Progress(StatusPart):
    """Progress in examples.

    `trained` counts acknowledgements, `distinct` the examples among them. `total` is of all epochs: exact
    if the files state their rows (`exact`), otherwise an estimate from what was read so far.
    """

    trained: int
    distinct: int
    total: int | None = None
    exact: bool = False
    epochs: int = 1
    seconds_left: float | None = None

    @property
    def fraction(self) -> float | None:
        """Share of the whole job, 0 to 1."""
        return min(1.0, self.distinct / self.total) if self.total else None


class Speed(StatusPart):
    """Examples/s, recently and in total.

    `now` is over the last seconds, `mean` from the first to the last trained batch.
    """

    now: float | None = None
    mean: float | None = None


class LabelNe(StatusPart):
    """Normalized entropy of one of several labels, see `Quality`."""

    ne: float | None = None
    ne_recent: float | None = None


class HourNe(StatusPart):
    """Normalized entropy of an hour; None if all its labels are the same.

    `hour` counts from 0, the first one since the job's start.
    """

    hour: int
    examples: int
    ne: float | None = None


class Quality(LabelNe):
    """Normalized entropy in training: of all batches, and of the latest.

    Each batch is scored before its step. Of several labels it is that of the first, and `labels` has that of
    each by its name. `hours` has the latest day of a job that lasts longer than an hour.
    """

    labels: dict[str, LabelNe] = {}
    hours: list[HourNe] = []


class SyncFigures(StatusPart):
    """Figures of synchronization.

    `gap_open` is the largest of the trainers' gaps since their last rounds, `gap_mean` the report's mean gap;
    bytes/s are what trainers sent and received for synchronization.
    """

    rounds: int = 0
    incomplete_rounds: int = 0
    gap_open: int | None = None
    gap_mean: float | None = None
    sent_bytes_per_second: float | None = None
    received_bytes_per_second: float | None = None
    divergence: float | None = None


class EmbeddingFigures(StatusPart):
    """Requests/s over all shards; staleness in pushes.

    `sharing_examples` is the share of the examples with an id whose row another id has too. Where rows lie on
    disk, `memory_share` is the share of the requested rows that were in memory lately, and `disk_wait_share`
    that of the time that the node waited for its disk which waited most.
    """

    lookups_per_second: float | None = None
    pushes_per_second: float | None = None
    staleness_mean: float | None = None
    staleness_max: int | None = None
    sharing_examples: float | None = None
    memory_share: float | None = None
    disk_reads_per_second: float | None = None
    disk_wait_share: float | None = None


class LedgerFigures(StatusPart):
    """Sums of the ledger so far, in examples.

    `read` is from the readers' last heartbeats, and `in_flight` (`read` less `trained`, `left_out` and
    `returned`) is as old as those. `left_out` counts batches whose loss or gradients are not finite.
    """

    read: int = 0
    trained: int = 0
    distinct: int = 0
    replayed: int = 0
    returned: int = 0
    in_flight: int = 0
    bad_rows: int = 0
    left_out: int = 0


class SampleFigures(StatusPart):
    """Examples of a data set that attached loops share.

    `granted = finished + returned + held`.
    """

    stream: str
    granted: int = 0
    finished: int = 0
    returned: int = 0
    held: int = 0


class LoopFigures(StatusPart):
    """Sums of the book of steps of a hub.

    `steps = synchronized + open + lost`: `open` are those that living loops have made since their last
    complete round, `lost` those that died with a loop, or that it had not synchronized as it left.
    `per_second` is over the last seconds.
    """

    members: int = 0
    steps: int = 0
    synchronized: int = 0
    open: int = 0
    lost: int = 0
    per_second: float | None = None
    samples: list[SampleFigures] = []


class NodeStatus(StatusPart):
    """One node.

    `cpu` is cores in use over the last seconds; `wait` the share of a trainer's worker time spent waiting for
    batches and vectors; `queued` a reader's batches that no trainer has credit for. `refused_messages` were
    malformed, `refused_connections` had a wrong key or none, or left too much unfinished. `steps`,
    `synchronized` (of the steps), `steps_per_second` and the bytes of synchronization so far are of attached
    loops.

    `merge_share` is the share of a center's latest merges that had this trainer's work; `late` that of the
    last seconds for which rounds waited for it, or its work came late.
    """

    name: str
    role: str
    index: int
    host: str = ""
    pid: int = 0
    alive: bool = True
    ready: bool = True
    why: str = ""
    cpu: float | None = None
    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    peak_memory_bytes: int | None = None
    examples: int | None = None
    examples_per_second: float | None = None
    wait: float | None = None
    rounds: int | None = None
    gap_open: int | None = None
    merge_share: float | None = None
    late: float | None = None
    queued: int | None = None
    retained_bytes: int | None = None
    requests_per_second: float | None = None
    steps: int | None = None
    synchronized: int | None = None
    steps_per_second: float | None = None
    sync_sent_bytes: int | None = None
    sync_received_bytes: int | None = None
    refused_messages: int = 0
    refused_connections: int = 0


class Edge(StatusPart):
    """Bytes/s between two nodes: `up` from source to target, `down` back."""

    source: str
    target: str
    up: float
    down: float


class ValidationStatus(StatusPart):
    """A checkpoint that was scored during training, after `examples`.

    `value` is the metric of the job's [validation]; `metrics` has all metrics by name.
    """

    examples: int
    value: float
    metrics: dict[str, float] = {}


class Incident(StatusPart):
    """An event of a node; `number` counts from 1."""

    number: int
    seconds: float
    node: str
    what: str


class CurvePart(StatusPart):
    """Points from index `start` on. If `step` changed, all points are new."""

    step: float
    start: int
    points: list[StatusPoint]


class Status(StatusPart):
    """The whole status. `curves` and `incidents` are new since the request's cursors.

    `loops` is that of a hub of attached loops, None of a job.
    """

    version: int = STATUS_VERSION
    run: str
    algorithm: str
    mode: str
    phase: str
    ended: bool = False
    outcome: str = ""
    page: str = ""
    seconds: float
    node_timeout_seconds: float = 10.0
    batch: int = 0
    elp: int = 0
    progress: Progress
    speed: Speed = Speed()
    quality: Quality = Quality()
    sync: SyncFigures = SyncFigures()
    embedding: EmbeddingFigures = EmbeddingFigures()
    ledger: LedgerFigures = LedgerFigures()
    loops: LoopFigures | None = None
    nodes: list[NodeStatus] = []
    edges: list[Edge] = []
    validation_metric: str = "ne"
    validation: list[ValidationStatus] = []
    incidents: list[Incident] = []
    curves: dict[str, CurvePart] = {}
    expected: dict[str, int] = Field(default_factory=dict)


def read_status(body: dict[str, Any]) -> Status:
    """Parse a status. Raises ProtocolError for another version or an invalid body."""
    version = body.get("version")
    if version != STATUS_VERSION:
        raise ProtocolError(
            f"the coordinator's status has version {version!r}; this program reads {STATUS_VERSION}",
            remedy="use the version of shadowsync that the job runs with",
        )
    try:
        return Status.model_validate(body)
    except ValidationError as error:
        raise ProtocolError(f"the coordinator's status cannot be read: {first_fault(error)}") from error
