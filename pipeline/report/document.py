"""The content of report.json; every number in it was measured in the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PrivateAttr, computed_field, model_validator

from ..metrics.importance import Importance
from ..types import ResultModel
from .ledger import Ledger
from .merged_work import Merges
from .quality import Evaluation, Train, Validation
from .tables.disk_rows import DiskRows
from .tables.growth import GrowingTable
from .tables.placement import Placement, Point
from .tables.sharing import SharedRows

FORMAT_VERSION: Final = 1
NE_PICTURE: Final = "ne.png"
THROUGHPUT_PICTURE: Final = "throughput.png"
SYNC_GAP_PICTURE: Final = "sync_gap.png"
OUTCOMES: Final = ("finished", "finished although a node died", "interrupted")
EARLY: Final = ("stopped: ", "finished early: ")


class ExampleCounts(ResultModel):
    """The ledger's numbers of examples, by what became of them.

    `in_flight` is None if a trainer could not say what it still had. `reasons` counts bad and dropped
    examples. `data.negative_share` left out `dropped_negatives` before they were batched, so no other count
    has them.
    """

    read: NonNegativeInt
    distinct: NonNegativeInt
    trained: NonNegativeInt
    replayed: NonNegativeInt
    returned: NonNegativeInt
    in_flight: NonNegativeInt | None
    dropped: NonNegativeInt
    bad_rows: NonNegativeInt
    dropped_negatives: NonNegativeInt = 0
    reasons: dict[str, NonNegativeInt] = {}


class Throughput(ResultModel):
    """Speed from the first to the last trained batch; `per_trainer` in examples/s.

    `cpu_seconds_per_million` is the CPU time of all nodes and the coordinator together for a million trained
    examples. `coordinator_cpu_seconds` is the coordinator's, which `nodes` lacks; None in reports of earlier
    versions.
    """

    examples_per_second: NonNegativeFloat | None
    per_trainer: dict[str, NonNegativeFloat]
    cpu_seconds_per_million: NonNegativeFloat | None
    coordinator_cpu_seconds: NonNegativeFloat | None = None


class BadBatch(ResultModel):
    """A batch that was left out; `id` is (epoch, span, number, seed)."""

    id: tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt, NonNegativeInt]
    path: str
    examples: NonNegativeInt
    trainer: str
    why: str

    def __str__(self) -> str:
        return f"batch {self.id} of {self.path}: {self.why}"


class BadBatches(ResultModel):
    """Batches that were left out, which changed nothing; `first` has some of them."""

    count: Annotated[int, Field(ge=1)]
    examples: NonNegativeInt
    limit: NonNegativeInt
    first: Annotated[list[BadBatch], Field(min_length=1)]


class Checkpoints(ResultModel):
    """Numbers of checkpoints written during training, and of failed ones."""

    written: NonNegativeInt
    failed: NonNegativeInt


class LinkTraffic(ResultModel):
    """Traffic of one direction of synchronization, counted once.

    `bytes` passed through the trainers' sockets, headers included. The values alone would take
    `float32_bytes` as float32.
    """

    codec: str
    bytes: NonNegativeInt
    float32_bytes: NonNegativeInt

    @property
    def compression(self) -> float | None:
        """Bytes as float32, divided by the bytes sent; None without traffic.

        For float32 itself the ratio is a little below 1, because of the headers.
        """
        return self.float32_bytes / self.bytes if self.bytes else None


class Sync(ResultModel):
    """Synchronization of the replicas.

    Attributes:
        incomplete_rounds: number of rounds that ended without all of their slices.
        undecided_rounds: number of incomplete rounds that a departed trainer may have completed.
        unanswered_slices: number of slices that moved a center, but may not have reached their trainer.
        gap_mean, gap_max: iterations of a trainer between completed rounds.
        first_rounds: rounds that began in a trainer's first FIRST_ITERATIONS, by the trainer's name, for
            trainers with so many iterations.
        seconds_mean: mean time of a round, from its start until it was applied.
        cpu_seconds_mean: mean CPU time of a round's thread, which `sync.duty` counts; None in old reports.
        bytes: bytes that the trainers sent and received; between two trainers each byte counts at both ends.
        links: traffic by the way's name in the job's `codecs`, without ways that were not used.
        reference_bytes: memory that lossy codecs needed at the end, by the role that held it.
        merges: what a center has merged, of an algorithm that merges.
        waited_seconds: by the trainer's name, for how long rounds waited for it, the last one to be ready; as
            the trainer has it that waited longest.
    """

    ignored_fields = frozenset({"control", "link_codecs"})

    algorithm: str
    mode: str
    rounds: NonNegativeInt
    incomplete_rounds: NonNegativeInt = 0
    undecided_rounds: NonNegativeInt = 0
    unanswered_slices: NonNegativeInt = 0
    gap_mean: NonNegativeFloat | None
    gap_max: NonNegativeFloat | None
    first_rounds: dict[str, NonNegativeInt] = {}
    bytes: NonNegativeInt
    seconds_mean: NonNegativeFloat | None
    cpu_seconds_mean: NonNegativeFloat | None = None
    links: dict[str, LinkTraffic] = {}
    reference_bytes: dict[str, NonNegativeInt] = {}
    optimizer_state: Literal["own", "synchronized"] = "own"
    merges: Merges | None = None
    waited_seconds: dict[str, NonNegativeFloat] = {}


class Staleness(ResultModel):
    """Pushes that a shard applied between a batch's lookup and its push.

    Attributes:
        lookups_ahead: by trainer, batches that a worker looked up ahead at the end; mean over its workers.
    """

    embedding_mean: NonNegativeFloat | None
    embedding_max: NonNegativeFloat | None
    lookups_ahead: dict[str, NonNegativeFloat] = {}


class Replicas(ResultModel):
    """The distance of the replicas from each other at the end.

    `divergence` is norm(w_i - mean) / norm(mean), averaged over the trainers.
    """

    divergence: NonNegativeFloat | None


class Event(ResultModel):
    """An event of a node, seconds after the start."""

    seconds: NonNegativeFloat
    node: str
    what: str


class NodeRecord(ResultModel):
    """A process of the run.

    Attributes:
        exit: how the process ended, such as "0" or "killed by signal 9"; None if it never ended.
        refused_messages: number of messages refused for their form.
        refused_connections: number of connections refused for their key, or for what they left unfinished.
    """

    name: str
    role: str
    cpu_seconds: NonNegativeFloat | None
    peak_memory_bytes: NonNegativeInt | None
    exit: str | None
    refused_messages: NonNegativeInt = 0
    refused_connections: NonNegativeInt = 0


class Curves(ResultModel):
    """The data of the pictures.

    Attributes:
        ne: points (examples trained, NE since the last point).
        throughput, sync_gap: points (seconds since the start, value), by trainer.
        divergence: points (seconds since the start, divergence in a sample of the replicas' elements).
        validation: points (examples trained so far, value of the metric of `validation`).
    """

    ne: list[Point] = []
    throughput: dict[str, list[Point]] = {}
    sync_gap: dict[str, list[Point]] = {}
    divergence: list[Point] = []
    validation: list[Point] = []


class EmulatedNetwork(ResultModel):
    """A slow network that was emulated.

    Attributes:
        delay_seconds: delay of one way.
        bytes_per_second: limit of each listening node, in each direction.
        relay_cpu_seconds, relay_bytes: cost of the relay; None if it died.
    """

    means: Literal["relay"]
    delay_seconds: NonNegativeFloat
    bytes_per_second: NonNegativeFloat | None
    links: Literal["sync", "all"]
    relay_cpu_seconds: NonNegativeFloat | None
    relay_bytes: NonNegativeInt | None


class Hardware(ResultModel):
    """The coordinator's machine; `cores` are those that the process may use."""

    cpu_model: str | None
    cores: Annotated[int, Field(ge=1)] | None
    memory_bytes: Annotated[int, Field(ge=1)] | None


class Report(ResultModel):
    """The whole report.

    Attributes:
        outcome: one of `OUTCOMES`, or "stopped: " or "finished early: " and the reason.
        started_at: ISO 8601 time.
        model_saved: which model was saved, in words.
        storage: URL of its checkpoints; "" if they are in the run's folder.
        eval: quality of the model of the headline on held-out files: the best by validation, or without one
            the last. `eval.model` names it.
        eval_last: quality of the last model, if `eval` is of another one.
        resumed_from: the run that this one continued.
        restored_examples: number of examples that run had trained; `examples` does not include them.
        elp: batch x workers x trainers.
        precision: precision of the matrix products, by trainer.
        warnings: what may have cost quality.
        importance: what `shadowsync importance` measured last of the saved model.
        pictures: whether pictures were wanted.
    """

    ignored_fields = frozenset({"eval_best"})

    format_version: Literal[1] = 1
    run: str
    outcome: str
    exit_code: Annotated[int, Field(ge=0, le=255)]
    started_at: str
    wall_seconds: NonNegativeFloat
    seed: NonNegativeInt
    job_digest: str
    model_saved: str | None
    storage: str = ""
    examples: ExampleCounts
    throughput: Throughput
    train: Train
    eval: Evaluation | None
    eval_last: Evaluation | None = None
    validation: Validation | None = None
    checkpoints: Checkpoints | None = None
    bad_batches: BadBatches | None = None
    resumed_from: str | None = None
    restored_examples: NonNegativeInt = 0
    sync: Sync
    elp: Annotated[int, Field(ge=1)]
    precision: dict[str, str] = {}
    staleness: Staleness
    replicas: Replicas
    ledger: Ledger
    warnings: list[str] = []
    events: list[Event] = []
    nodes: list[NodeRecord] = []
    placement: Placement | None = None
    growing_tables: list[GrowingTable] = []
    disk_rows: list[DiskRows] = []
    shared_rows: SharedRows | None = None
    network: EmulatedNetwork | None = None
    importance: Importance | None = None
    hardware: Hardware
    versions: dict[str, str]
    curves: Curves = Curves()
    pictures: bool = True

    # Not in the file, because it may be elsewhere on another machine.
    _folder: Path | None = PrivateAttr(default=None)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def eval_best(self) -> Evaluation | None:
        """`eval`, if the best model is not the last."""
        return self.eval if self.eval_last is not None else None

    @property
    def headline(self) -> Evaluation | None:
        """Quality on held-out files of the best model by validation, or the last: `eval`."""
        return self.eval

    @property
    def folder(self) -> Path | None:
        """The run's folder, for a report that `shadowsync.run` returned."""
        return self._folder

    @model_validator(mode="after")
    def _known_outcome(self) -> Self:
        if self.outcome not in OUTCOMES and not self.outcome.startswith(EARLY):
            others = ", ".join(f'"{start}..."' for start in EARLY)
            raise ValueError(f"outcome: one of {', '.join(OUTCOMES)}, or {others}, not {self.outcome!r}")
        return self
