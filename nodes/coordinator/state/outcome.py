"""The outcome of a job: stop, scores, final model and facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias

from ....pipeline.checkpoint.files import FileEntry
from ....pipeline.checkpoint.manifest import AVERAGE
from ....pipeline.config.sections import ValidationSection
from ....pipeline.errors import ExitCode
from ....pipeline.metrics.quality import QualitySums
from ....pipeline.metrics.retrieval import RetrievalQuality
from ....pipeline.metrics.top_k import GroupRanking
from ....pipeline.performance.document import Profile
from ....pipeline.types import BatchId
from ....pipeline.wire.control.messages import NodeFacts
from ....pipeline.wire.control.orders import ComposeModel, FinalizeReply, WriteCheckpoint
from ....pipeline.wire.field_checks import Counts, Items
from ....sync_algos.contract.model_origin import ModelOrigin

# As many as a value of SQLite can have.
MAX_REPORT_CHARACTERS: Final = 10**9
FOLDER_REMOVED: Final = (
    "the run folder was removed while the job ran, with its ledger and earlier checkpoints; the run cannot be"
    " resumed"
)


@dataclass(frozen=True, slots=True)
class Stop:
    """A reason to stop.

    Attributes:
        kind: an interrupt by the user, the death of a node that the job needs, or an error of a node.
        text: one line for the user.
        exit_code: exit code of the command.
        lost_shard: rows are lost, so that no whole checkpoint can be written.
        diverged: the model may have become worthless, so it replaces no earlier checkpoint.
    """

    kind: Literal["interrupted", "death", "failed"]
    text: str
    exit_code: ExitCode
    lost_shard: bool = False
    diverged: bool = False


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How a job ends, decided before its nodes are told to end.

    Attributes:
        text: one line for the user; "" if all is well.
        report: report.json; "" without a report.
    """

    exit_code: ExitCode
    text: str
    report: Annotated[str, Items(MAX_REPORT_CHARACTERS)]


TracedProfile: TypeAlias = tuple[Profile, list[dict[str, Any]]]
"""A profile, and its trace events."""

CountsByNode: TypeAlias = Mapping[str, Counts]


@dataclass(frozen=True)
class Score:
    """An evaluation: its model, and the sums of each scored replica.

    `bad_rows` were malformed, and training has not counted them. `rankings` has the figures within groups of
    each replica, of a job that has groups. Of the saved model are `retrieval`, in a job with a catalogue, and
    `own_metrics`, those of `validation.own`.
    """

    model: str
    sums: Sequence[QualitySums]
    bad_rows: int = 0
    rankings: Sequence[GroupRanking] = ()
    retrieval: RetrievalQuality | None = None
    own_metrics: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scored:
    """The metric of a checkpoint, with its trained examples and seconds since the start.

    `metrics` has all metrics that could be computed, by name; it is empty for a score of an earlier run.
    """

    examples: int
    seconds: float
    value: float
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class ValidationState:
    """Validation as a state machine: scores in, verdicts out.

    A score is the best if it is better than the best so far by `min_delta`. `waited_seconds` is the time for
    which training waited for validations.
    """

    settings: ValidationSection
    points: list[Scored] = field(default_factory=list)
    best: Scored | None = None
    without_improvement: int = 0
    failed: int = 0
    skipped: int = 0
    waited_seconds: float = 0.0

    def improves(self, value: float) -> bool:
        """Return whether a checkpoint of this value would be the best so far."""
        return self.best is None or self._better(value, self.best.value)

    def add(self, scored: Scored) -> bool:
        """Add the score of a checkpoint; return whether it is the best so far."""
        best = self.improves(scored.value)
        self.points.append(scored)
        self.without_improvement = 0 if best else self.without_improvement + 1
        self.best = scored if best else self.best
        return best

    def adopt(self, best: Scored) -> None:
        """Begin with the resumed run's best score, which a new one must beat."""
        self.best = best

    def fail(self) -> None:
        self.failed += 1

    def skip(self) -> None:
        """Count a validation that was due but is skipped."""
        self.skipped += 1

    def wait(self, seconds: float) -> None:
        """Count time for which training waited."""
        self.waited_seconds += seconds

    @property
    def exhausted(self) -> bool:
        """Whether training should end, after `patience` validations without improvement."""
        return 0 < self.settings.patience <= self.without_improvement

    def _better(self, value: float, than: float) -> bool:
        gain = value - than if self.settings.highest_is_best else than - value
        return gain > self.settings.min_delta


@dataclass(frozen=True)
class TrainingResult:
    """How training went.

    Attributes:
        ended_early: why training ended early, in words; empty if the whole input is trained.
        profile: the profile with its trace events; None if none was requested, or nothing could be measured.
    """

    ended_early: str = ""
    divergence_curve: Sequence[tuple[float, float]] = ()
    profile: TracedProfile | None = None


@dataclass(frozen=True)
class DrainedCounts:
    """What nodes said as training ended.

    Attributes:
        readers, trainers, shards: each node's last counts, by name.
        unstopped: trainers with a worker that did not stop in time; their counts lack what it had.
        progressive: sums over the batches that were scored before their step.
        applied_of: by shard, the batches that it applied among those that a dead trainer returned and that
            were then left out.
        cpu_seconds: used to train, by node.
    """

    readers: CountsByNode = field(default_factory=dict)
    trainers: CountsByNode = field(default_factory=dict)
    unstopped: frozenset[str] = frozenset()
    progressive: QualitySums | None = None
    shards: CountsByNode = field(default_factory=dict)
    applied_of: Mapping[str, tuple[BatchId, ...]] = field(default_factory=dict)
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ClosingResult:
    """What nodes counted until after the closing round, by name: of trainers only what it added."""

    trainers: CountsByNode = field(default_factory=dict)
    syncs: CountsByNode = field(default_factory=dict)


@dataclass(frozen=True)
class SavedCheckpoints:
    """Checkpoints and validation during training.

    Attributes:
        checkpoints, failed_checkpoints: number of written and of failed checkpoints.
        validation: the scores; None without `[validation]`.
        best_is_last: whether the last checkpoint is also the best one.
    """

    checkpoints: int
    failed_checkpoints: int
    validation: ValidationState | None
    best_is_last: bool


@dataclass(frozen=True)
class Outcome:
    """The results of a job's phases; those of unreached phases stay None or empty.

    Attributes:
        stop: why the job stopped; None if its input is trained, or training ended early as configured.
        divergence: of the replicas at the end.
        model_saved: which model the checkpoint has; None without a checkpoint.
        older_checkpoint: what the checkpoint of an earlier moment lacks, in words, if the job's last one
            could not be written; "" otherwise.
        score: the last model's on the held-out files.
        best_score: the best checkpoint's score on the held-out files, unless it is the last one.
        notes: sentences for the report.
    """

    stop: Stop | None = None
    training: TrainingResult = TrainingResult()
    drained: DrainedCounts = DrainedCounts()
    divergence: float | None = None
    closed: ClosingResult = ClosingResult()
    model_saved: str | None = None
    older_checkpoint: str = ""
    saved_checkpoints: SavedCheckpoints | None = None
    score: Score | None = None
    best_score: Score | None = None
    notes: tuple[str, ...] = ()

    @property
    def trainers(self) -> CountsByNode:
        """The trainers' last counts, of those that were drained or took part in the closing round."""
        closed = self.closed.trainers
        names = [*self.drained.trainers, *(name for name in closed if name not in self.drained.trainers)]
        return {name: self.drained.trainers.get(name, {}) | closed.get(name, {}) for name in names}


_AVERAGE: Final = "the moving average of "
_WORDS = {
    ModelOrigin.CENTER: "the center",
    ModelOrigin.MEAN: "the mean of the replicas",
    ModelOrigin.GLOBAL: "the global model",
}


@dataclass
class FinalModel:
    """The trainers' model. `origin` becomes REPLICAS when the single model is lost.

    `needs_peers` and `merges` are the algorithm's. `ema` says that its moving average is saved and scored,
    too.

    By trainer, `digests` has the digest of its single model, and `rounds` the rounds behind it. `saved_by` is
    the trainer whose model is saved.
    """

    origin: ModelOrigin
    algorithm: str
    dense_elements: int
    needs_peers: bool
    merges: bool = False
    ema: bool = False
    digests: dict[str, str] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    saved_by: str = ""

    @classmethod
    def of(cls, facts: NodeFacts, algorithm: str, *, ema: bool = False) -> FinalModel:
        """Take one trainer's facts; they all agree."""
        return cls(
            origin=ModelOrigin(facts.model_origin),
            algorithm=algorithm,
            dense_elements=facts.dense_elements,
            needs_peers=facts.needs_peers,
            merges=facts.merges,
            ema=ema,
        )

    @property
    def single(self) -> bool:
        """Whether the job produces one model, not a replica per trainer."""
        return self.origin != ModelOrigin.REPLICAS

    @property
    def words(self) -> str:
        """Name the single model, without the algorithm."""
        return f"{_AVERAGE}the replicas' mean" if self.ema else _WORDS[self.origin]

    def saved(self, trainer: str) -> str:
        """Name the model in the checkpoint, written by `trainer`."""
        of_replica = f"{_AVERAGE if self.ema else ''}the replica of {trainer}"
        return f"{self.words if self.single else of_replica} ({self.algorithm})"

    def scored(self, replicas: int) -> str:
        """Name the model of the evaluation."""
        if self.single:
            return f"{self.words} ({self.algorithm})"
        of = "the replica" if replicas == 1 else f"the mean of the {replicas} replicas' own scores"
        return f"{_AVERAGE if self.ema and replicas == 1 else ''}{of} ({self.algorithm})"

    def compose_average(self, part: WriteCheckpoint, files: Sequence[FileEntry], saver: int) -> ComposeModel:
        """Return the order for the moving average of a checkpoint's files.

        It is of all trainers if they make a single model, or else of the one that is saved.
        """
        of_trainers = [
            file
            for file in files
            if file.role == f"trainer-{saver}" or (self.single and file.role.startswith("trainer-"))
        ]
        return ComposeModel(part.directory, AVERAGE, tuple(of_trainers), part.yields)

    def finalized(self, name: str, reply: FinalizeReply) -> None:
        """Record a trainer's model after the closing round."""
        self.digests.pop(name, None)
        if reply.model_ready:
            self.digests[name] = reply.model_digest
            self.rounds[name] = reply.model_rounds

    def save_by(self, trainer: str) -> None:
        """Record whose model is saved."""
        self.saved_by = trainer

    def lose_single(self) -> None:
        """Record that the single model is lost, so that the replicas are the result."""
        self.origin = ModelOrigin.REPLICAS

    def by_promise(self, names: Iterable[str]) -> list[str]:
        """Sort `names`: first those with the single model after the most rounds."""
        return sorted(names, key=lambda name: (name not in self.digests, -self.rounds.get(name, 0)))

    def agreeing(self, names: Iterable[str]) -> list[str]:
        """Select those of `names` that hold the saved model."""
        return [name for name in names if self.digests.get(name) == self.digests.get(self.saved_by)]
