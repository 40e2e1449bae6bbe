"""The content of report.json: every number in it was measured in that run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PrivateAttr, model_validator

from ..types import ResultModel
from .adaptation import Control, LinkChoice
from .ledger import Ledger
from .placement import Placement, Point

FORMAT_VERSION: Final = 1
NE_PICTURE: Final = "ne.png"
THROUGHPUT_PICTURE: Final = "throughput.png"
SYNC_GAP_PICTURE: Final = "sync_gap.png"
OUTCOMES: Final = ("finished", "finished although a node died", "interrupted")
EARLY: Final = ("stopped: ", "finished early: ")


class ExampleCounts(ResultModel):
    """Numbers of examples by what became of them, by the ledger.

    `reasons` counts bad and dropped ones. `dropped_negatives` were left out by `data.negative_share`, before
    they were batched: they are in no other count.
    """

    read: NonNegativeInt
    distinct: NonNegativeInt
    trained: NonNegativeInt
    replayed: NonNegativeInt
    returned: NonNegativeInt
    in_flight: NonNegativeInt
    dropped: NonNegativeInt
    bad_rows: NonNegativeInt
    dropped_negatives: NonNegativeInt = 0
    reasons: dict[str, NonNegativeInt] = {}


class Throughput(ResultModel):
    """Speed from the first to the last trained batch; `per_trainer` in examples/s.

    `cpu_seconds_per_million` is of all nodes together, for a million trained examples.
    """

    examples_per_second: NonNegativeFloat | None
    per_trainer: dict[str, NonNegativeFloat]
    cpu_seconds_per_million: NonNegativeFloat | None


class Progressive(ResultModel):
    """Quality on the last part of training.

    Each batch is scored before its step, by the replica that trains it (`model` says so). `examples` is how
    many of the `trained` examples of this part in the first epoch were scored: the scores of a trainer that
    died are lost with it. The other fields are None if nothing was scored, and all but `logloss` also if all
    labels are the same.
    """

    model: str
    examples: NonNegativeInt
    trained: NonNegativeInt
    ne: NonNegativeFloat | None
    auc: NonNegativeFloat | None
    auc_error: NonNegativeFloat | None
    logloss: NonNegativeFloat | None


class Train(ResultModel):
    """Quality in training.

    `ne_progressive` is the normalized entropy of all trained examples, each scored before it was trained on,
    `progressive` that of the job's progressive part. Sample weights weight all figures of quality, no counts.
    `rows_warmup_examples`: see `Job`. `dense_updates` by trainer, with `trainer.balance`.
    """

    ne_progressive: NonNegativeFloat | None
    progressive: Progressive | None = None
    rows_warmup_examples: NonNegativeInt = 0
    dense_updates: dict[str, NonNegativeInt] = {}


class CalibrationPart(ResultModel):
    """An equal part of the examples: weight, mean prediction, mean label."""

    examples: NonNegativeFloat
    predicted: NonNegativeFloat
    rate: NonNegativeFloat


class Evaluation(ResultModel):
    """Quality on the held-out files, of the model that `model` names.

    `ne`, `auc`, `calibration`, `pr_auc` and `lift` are None where all labels are the same. `auc_error` bounds
    what the histogram can have cost `auc`. `pr_auc`, `lift` (of the tenth with the highest scores),
    `calibration_error` and the curve are those of `pipeline.metrics.ranking`; reports of before have none.
    `teacher_ne` and `gain_ratio` exist for generated logs only.
    """

    model: str
    ne: NonNegativeFloat | None
    auc: NonNegativeFloat | None
    auc_error: NonNegativeFloat | None = None
    logloss: NonNegativeFloat
    calibration: NonNegativeFloat | None
    examples: Annotated[int, Field(ge=1)]
    pr_auc: NonNegativeFloat | None = None
    lift: NonNegativeFloat | None = None
    calibration_error: NonNegativeFloat | None = None
    calibration_curve: list[CalibrationPart] = []
    teacher_ne: NonNegativeFloat | None = None
    gain_ratio: float | None = None


class Validation(ResultModel):
    """Checkpoints that were scored during training; their values are `curves.validation`.

    `best` is the metric's best value, of the checkpoint that was taken after `best_examples` and is kept in
    `folder` of the run's folder; None where none could be scored. `best_is_last`: the last checkpoint is the
    best one, too. `failed` validations gave no score; the events say why. `skipped` ones were due while too
    many others waited.
    """

    metric: Literal["ne", "auc", "logloss"]
    count: NonNegativeInt
    failed: NonNegativeInt = 0
    skipped: NonNegativeInt = 0
    best: NonNegativeFloat | None
    best_examples: NonNegativeInt | None
    folder: str | None
    best_is_last: bool


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
    """Batches that were left out; `first` are some of them.

    They changed no row. If batches are cut, the micro-batches before the bad one changed dense parameters.
    """

    count: Annotated[int, Field(ge=1)]
    examples: NonNegativeInt
    limit: NonNegativeInt
    first: Annotated[list[BadBatch], Field(min_length=1)]


class Checkpoints(ResultModel):
    """Numbers of checkpoints written during training, and of failed ones."""

    written: NonNegativeInt
    failed: NonNegativeInt


class LinkTraffic(ResultModel):
    """Traffic of one direction of synchronization.

    `bytes` went through the trainers' sockets, headers included; `float32_bytes` is what the values among
    them would take as float32.
    """

    codec: str
    bytes: NonNegativeInt
    float32_bytes: NonNegativeInt

    @property
    def compression(self) -> float | None:
        """Ratio of the bytes as float32 to the bytes sent.

        A little below 1 for float32 itself.
        """
        return self.float32_bytes / self.bytes if self.bytes else None


class Sync(ResultModel):
    """Synchronization: gaps are iterations of a trainer between completed rounds.

    `seconds_mean` is a round's time from its start until it was applied, `cpu_seconds_mean` the CPU time of
    its thread, which `sync.duty` counts; None in reports of earlier versions. `incomplete_rounds` ended
    without all of their slices; `undecided_rounds` are those of them that a trainer that was gone may have
    completed; `unanswered_slices` moved a center and are not known to have reached their trainer.
    `first_rounds` began in the FIRST_ITERATIONS of a trainer; of those that did so many, by name. `links` is
    by the way's name in the job's `codecs`, of those that carried anything; `reference_bytes` is the memory
    that lossy codecs needed at the end, by the role that held it. `optimizer_state` is the job's setting.
    `control`: None without `sync.control`.
    """

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
    control: Control | None = None
    link_codecs: list[LinkChoice] = []


class Staleness(ResultModel):
    """Pushes that a shard applied between a batch's lookup and its push."""

    embedding_mean: NonNegativeFloat | None
    embedding_max: NonNegativeFloat | None


class Replicas(ResultModel):
    """The distance of the replicas from each other at the end.

    `divergence`: norm(w_i - mean) / norm(mean), averaged over the trainers.
    """

    divergence: NonNegativeFloat | None


class Event(ResultModel):
    """An event of a node, seconds after the start."""

    seconds: NonNegativeFloat
    node: str
    what: str


class NodeRecord(ResultModel):
    """A process of the run.

    `exit` is such as ("0", "killed by signal 9"), None if it never ended; `refused_messages` are those that
    it refused for their form, `refused_connections` those for their key.
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

    A point of `ne` is (examples trained, NE since the last point).

    A point of `validation` is (examples trained so far, value of the metric of `validation`).
    The others have points (seconds since the start, value), by the trainer's name where they are of one;
    `divergence` is of a sample of the replicas' elements.
    """

    ne: list[Point] = []
    throughput: dict[str, list[Point]] = {}
    sync_gap: dict[str, list[Point]] = {}
    divergence: list[Point] = []
    validation: list[Point] = []


class EmulatedNetwork(ResultModel):
    """A slow network that was emulated.

    The delay is one way; the rate is of each listening node, in each direction. `links` are "sync" or "all".
    `means` is "tc" in reports of earlier versions only; what a relay cost is None there.
    """

    means: Literal["relay", "tc"]
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


REMOVED_FIELDS = ("row_cache",)
"""Fields of reports of earlier versions, which are read without them."""


class Report(ResultModel):
    """The whole report. `elp` is batch x workers x trainers.

    `model_saved` says which model was saved.

    `outcome` is one of `OUTCOMES`, or "stopped: " or "finished early: " and why; `started_at` is ISO 8601.
    `eval_best` is of the best checkpoint, where that is another than the last one. `resumed_from` names the
    run that this one went on with, which had trained `restored_examples`; they are not part of `examples`.
    `bad_batches` is None where no batch was left out. `precision` has in which one each trainer's steps
    multiplied. `warnings` say what can have cost quality. `pictures`: whether pictures were wanted.
    """

    format_version: Literal[1] = 1
    run: str
    outcome: str
    exit_code: Annotated[int, Field(ge=0, le=255)]
    started_at: str
    wall_seconds: NonNegativeFloat
    seed: NonNegativeInt
    job_digest: str
    model_saved: str | None
    examples: ExampleCounts
    throughput: Throughput
    train: Train
    eval: Evaluation | None
    eval_best: Evaluation | None = None
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
    network: EmulatedNetwork | None = None
    hardware: Hardware
    versions: dict[str, str]
    curves: Curves = Curves()
    pictures: bool = True

    # Where it lies on this machine; no part of what is written.
    _folder: Path | None = PrivateAttr(default=None)

    @property
    def folder(self) -> Path | None:
        """The run's folder, for a report that `shadowsync.run` returned."""
        return self._folder

    def at(self, folder: Path) -> Report:
        """Copy the report, as that of the run in this folder."""
        copy = self.model_copy()
        copy._folder = folder
        return copy

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        return {name: value for name, value in body.items() if name not in REMOVED_FIELDS}

    @model_validator(mode="after")
    def _known_outcome(self) -> Self:
        if self.outcome not in OUTCOMES and not self.outcome.startswith(EARLY):
            others = ", ".join(f'"{start}..."' for start in EARLY)
            raise ValueError(f"outcome: one of {', '.join(OUTCOMES)}, or {others}, not {self.outcome!r}")
        return self
