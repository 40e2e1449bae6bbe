"""The outcome of a job: stop, scores, final model and facts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from ....pipeline.config.sections import ValidationSection
from ....pipeline.errors import ExitCode
from ....pipeline.metrics.quality import QualitySums
from ....pipeline.performance.document import Profile
from ....pipeline.types import BatchId
from ....pipeline.wire.control.messages import NodeFacts
from ....pipeline.wire.control.orders import FinalizeReply
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


CountsByNode = dict[str, Counts]


@dataclass(frozen=True)
class Score:
    """An evaluation: its model, and the sums of each scored replica.

    `bad_rows` were malformed, and training has not counted them.
    """

    model: str
    sums: list[QualitySums]
    bad_rows: int = 0


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
        """Count a validation that failed."""
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
        gain = value - than if self.settings.metric == "auc" else than - value
        return gain > self.settings.min_delta


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


@dataclass
class Outcome:
    """Facts gathered phase by phase; those of unreached phases stay None or empty.

    Attributes:
        stop: why the job stopped; None if its input is trained, or training ended early as configured.
        ended_early: why training ended early, in words; empty if the whole input is trained.
        readers, trainers, shards, syncs: each node's last counts, by name.
        unstopped: trainers with a worker that did not stop in time; their counts lack what it had.
        applied_of: by shard, the batches that it applied among those that a dead trainer returned and that
            were then left out.
        model_saved: which model the checkpoint has; None without a checkpoint.
        older_checkpoint: what the checkpoint of an earlier moment lacks, in words, if the job's last one
            could not be written; "" otherwise.
        progressive: sums over the batches that were scored before their step.
        profile: the profile with its trace events; None if none was requested, or nothing could be measured.
        best_score: the best checkpoint's score on the held-out files, unless it is the last one.
    """

    stop: Stop | None = None
    ended_early: str = ""
    readers: CountsByNode = field(default_factory=dict)
    trainers: CountsByNode = field(default_factory=dict)
    shards: CountsByNode = field(default_factory=dict)
    applied_of: dict[str, tuple[BatchId, ...]] = field(default_factory=dict)
    syncs: CountsByNode = field(default_factory=dict)
    unstopped: frozenset[str] = frozenset()
    divergence: float | None = None
    divergence_curve: list[tuple[float, float]] = field(default_factory=list)
    model_saved: str | None = None
    older_checkpoint: str = ""
    score: Score | None = None
    best_score: Score | None = None
    progressive: QualitySums | None = None
    saved_checkpoints: SavedCheckpoints | None = None
    profile: tuple[Profile, list[dict[str, Any]]] | None = None
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a sentence to the report's notes."""
        self.notes.append(text)

    def stopped(self, stop: Stop | None) -> None:
        """Record why the job stopped, if it did; the first reason counts."""
        self.stop = self.stop or stop

    def trained(self, divergence_curve: list[tuple[float, float]], ended_early: str) -> None:
        """Record how training went, and why it ended before its input did."""
        self.divergence_curve, self.ended_early = divergence_curve, ended_early

    def profiled(self, profile: tuple[Profile, list[dict[str, Any]]] | None) -> None:
        """Record what was measured for a profile."""
        self.profile = profile

    def checkpoints_taken(self, saved: SavedCheckpoints) -> None:
        """Record the checkpoints and validations of training."""
        self.saved_checkpoints = saved

    def readers_drained(self, counts: CountsByNode) -> None:
        """Record the last counts of readers."""
        self.readers = counts

    def trainers_drained(
        self, counts: CountsByNode, progressive: QualitySums, unstopped: Iterable[str] = ()
    ) -> None:
        """Record the trainers' last counts and their scores of batches before the step."""
        self.trainers, self.progressive, self.unstopped = counts, progressive, frozenset(unstopped)

    def shards_drained(self, counts: CountsByNode, applied_of: dict[str, tuple[BatchId, ...]]) -> None:
        """Record the embedding nodes' last counts, and the doubtful batches they applied."""
        self.shards, self.applied_of = counts, applied_of

    def syncs_drained(self, counts: CountsByNode) -> None:
        """Record the last counts of sync nodes."""
        self.syncs = counts

    def used_cpu(self, node: str, seconds: float) -> None:
        """Record the CPU seconds that a node used to train."""
        self.cpu_seconds[node] = seconds

    def finalized(self, trainer: str, counts: Counts) -> None:
        """Add a trainer's counts after its closing round to those of its drain."""
        self.trainers.setdefault(trainer, {}).update(counts)

    def diverged(self, divergence: float | None) -> None:
        """Record the divergence of the replicas at the end."""
        self.divergence = divergence

    def saved(self, model: str) -> None:
        """Record which model the last checkpoint has."""
        self.model_saved = model

    def keeps_older(self, what: str) -> None:
        """Record that the last checkpoint could not be written, and which one there is."""
        self.older_checkpoint = what
        self.note(what)

    def evaluated(self, score: Score) -> None:
        """Record the score of the last model on the held-out files."""
        self.score = score

    def evaluated_best(self, score: Score) -> None:
        """Record the score of the best checkpoint on the held-out files."""
        self.best_score = score


_WORDS = {
    ModelOrigin.CENTER: "the center",
    ModelOrigin.MEAN: "the mean of the replicas",
    ModelOrigin.GLOBAL: "the global model",
}


@dataclass
class FinalModel:
    """The trainers' model. `origin` becomes REPLICAS when the single model is lost.

    By trainer, `digests` has the digest of its single model, and `rounds` the rounds behind it. `saved_by` is
    the trainer whose model is saved.
    """

    origin: ModelOrigin
    algorithm: str
    dense_elements: int
    needs_peers: bool
    digests: dict[str, str] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    saved_by: str = ""

    @classmethod
    def of(cls, facts: NodeFacts, algorithm: str) -> FinalModel:
        """Take one trainer's facts; they all agree."""
        return cls(
            origin=ModelOrigin(facts.model_origin),
            algorithm=algorithm,
            dense_elements=facts.dense_elements,
            needs_peers=facts.needs_peers,
        )

    @property
    def single(self) -> bool:
        """Whether the job produces one model, not a replica per trainer."""
        return self.origin != ModelOrigin.REPLICAS

    @property
    def words(self) -> str:
        """Name the single model, without the algorithm."""
        return _WORDS[self.origin]

    def saved(self, trainer: str) -> str:
        """Name the model in the checkpoint, written by `trainer`."""
        return f"{self.words if self.single else f'the replica of {trainer}'} ({self.algorithm})"

    def scored(self, replicas: int) -> str:
        """Name the model of the evaluation."""
        if self.single:
            return f"{self.words} ({self.algorithm})"
        of = "the replica" if replicas == 1 else f"the mean of the {replicas} replicas' own scores"
        return f"{of} ({self.algorithm})"

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
