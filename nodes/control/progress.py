"""Progress of a running job: input, origin, metrics, rates and divergence."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ...pipeline.data.formats.parquet import IdClass
from ...pipeline.metrics.buckets import Buckets
from ...pipeline.report.quality import HourOfLabel, TrainedHour
from ...pipeline.types import BatchId
from .loss_sums import LossSums

FIRST_PERIOD_SECONDS: Final = 1.0
MAX_POINTS: Final = 512
WINDOW_SECONDS: Final = 5.0
HOUR_SECONDS: Final = 3600
STALE_SECONDS: Final = 3.0
# Buckets of the curve that are the latest examples.
_LATEST: Final = 2


@dataclass(frozen=True)
class MetricsSnapshot:
    """What `TrainingMetrics.trained` has added; not copied."""

    sums: list[float]
    first_seconds: float | None
    last_seconds: float | None
    ne: list[Any]
    throughput: dict[str, list[Any]]
    examples_of: dict[str, int]
    hours: dict[int, list[float]]


class TrainingMetrics:
    """Sums of acknowledgements, and gaps from heartbeats. Times are seconds since the start.

    If a job has sample weights, the sums of losses and positives are weighted, and so is NE. Owned by the
    coordinator's loop.

    Args:
        labels: names of the job's labels, the headline first; curves are of the headline.
        of_logits: whether the losses are log losses; else there is no NE.
    """

    def __init__(self, labels: Sequence[str] = ("label",), *, of_logits: bool = True) -> None:
        self._of_logits = of_logits
        self._labels = tuple(labels)
        self._sums = LossSums.empty(len(labels))
        self.first_seconds: float | None = None
        self.last_seconds: float | None = None
        self._ne = Buckets(4096, 2 + 2 * len(labels))
        self._throughput: dict[str, Buckets] = {}
        self._gap: dict[str, Buckets] = {}
        self._gap_seen: dict[str, tuple[int, int]] = {}
        self._examples_of: dict[str, int] = {}
        # Of each hour since the start.
        self._hours: dict[int, LossSums] = {}

    def trained(
        self,
        trainer: str,
        seconds: float,
        examples: int,
        loss_sum: float,
        positives: float,
        weight: float | None = None,
        others: Sequence[tuple[float, float]] = (),
    ) -> None:
        """Add a trained batch with its loss before the step (progressive validation).

        `weight` is the sum of its sample weights; by default each is 1. `others` has the sums of losses and
        of positives of each further label. Raises ValueError for another number of labels.
        """
        weight = float(examples) if weight is None else weight
        sums = (examples, weight, *(value for pair in ((loss_sum, positives), *others) for value in pair))
        before = self.examples
        self._sums.add(sums)
        self._ne.add(before, *sums)
        self._examples_of[trainer] = self._examples_of.get(trainer, 0) + examples
        self.first_seconds = seconds if self.first_seconds is None else min(self.first_seconds, seconds)
        self.last_seconds = seconds if self.last_seconds is None else max(self.last_seconds, seconds)
        self._throughput.setdefault(trainer, Buckets(0.5, 1)).add(max(0.0, seconds), examples)
        hour = int(max(0.0, seconds) // HOUR_SECONDS)
        self._hours.setdefault(hour, LossSums.empty(len(self._labels))).add(sums)

    def snapshot(self) -> MetricsSnapshot:
        """Return what `trained` has added."""
        return MetricsSnapshot(
            sums=self._sums.values,
            first_seconds=self.first_seconds,
            last_seconds=self.last_seconds,
            ne=self._ne.saved(),
            throughput={name: buckets.saved() for name, buckets in self._throughput.items()},
            examples_of=self._examples_of,
            hours={hour: sums.values for hour, sums in self._hours.items()},
        )

    def restore(self, snapshot: MetricsSnapshot) -> None:
        self._sums = LossSums(snapshot.sums)
        self.first_seconds, self.last_seconds = snapshot.first_seconds, snapshot.last_seconds
        self._ne.restore(snapshot.ne)
        self._throughput = {
            name: Buckets(0.5, 1).restore(buckets) for name, buckets in snapshot.throughput.items()
        }
        self._examples_of = snapshot.examples_of
        self._hours = {hour: LossSums(values) for hour, values in snapshot.hours.items()}

    def heartbeat(self, trainer: str, seconds: float, metrics: dict[str, Any]) -> None:
        """Add a trainer's heartbeat: iterations per round since the last one."""
        iterations, rounds = int(metrics.get("iterations", 0)), int(metrics.get("rounds", 0))
        before = self._gap_seen.get(trainer, (0, 0))
        if iterations == before[0]:
            return
        buckets = self._gap.setdefault(trainer, Buckets(0.5, 2))
        if rounds > before[1]:
            self._gap_seen[trainer] = (iterations, rounds)
            buckets.add(seconds, iterations - before[0], rounds - before[1])
        else:
            # No round since the last heartbeat: count the gap so far, which still grows.
            buckets.add(seconds, float(metrics.get("gap_open", 0)), 1)

    @property
    def seconds(self) -> float:
        """Seconds from the first to the last trained batch."""
        if self.first_seconds is None or self.last_seconds is None:
            return 0.0
        return self.last_seconds - self.first_seconds

    @property
    def examples(self) -> int:
        return self._sums.examples

    @property
    def ne_progressive(self) -> float | None:
        """Normalized entropy of all trained batches, each scored before its step."""
        return self._ne_of(self._sums)

    @property
    def ne_by_label(self) -> dict[str, tuple[float | None, float | None]]:
        """NE of each of several labels: of all batches, and of the latest."""
        recent = LossSums.over(self._ne, _LATEST)
        return {
            name: (self._ne_of(self._sums, label), self._ne_of(recent, label))
            for name, label in self._several()
        }

    def _ne_of(self, sums: LossSums | None, label: int = 0) -> float | None:
        return sums.ne(label) if sums is not None and self._of_logits else None

    def _several(self) -> list[tuple[str, int]]:
        """Return the names and places of the labels; [] if there is one only."""
        return [(name, label) for label, name in enumerate(self._labels)] if len(self._labels) > 1 else []

    def examples_per_second(self) -> float | None:
        return self.examples / self.seconds if self.seconds > 0 else None

    def per_trainer(self) -> dict[str, float]:
        """Return examples per second by trainer, over the same time."""
        if self.seconds <= 0:
            return {}
        return {trainer: count / self.seconds for trainer, count in sorted(self._examples_of.items())}

    def hours(self) -> list[TrainedHour]:
        """Return the hours in which batches were trained, in order."""
        return [
            TrainedHour(
                hour=hour,
                examples=sums.examples,
                ne=self._ne_of(sums),
                label_rate=sums.rate(),
                labels={
                    name: HourOfLabel(ne=self._ne_of(sums, label), label_rate=sums.rate(label))
                    for name, label in self._several()
                },
            )
            for hour, sums in sorted(self._hours.items())
        ]

    def ne_curve(self) -> list[tuple[float, float]]:
        """Return (examples so far, NE of those since the last point)."""
        points = []
        so_far = 0.0
        for _, values in self._ne.sums():
            so_far += values[0]
            ne = self._ne_of(LossSums(values))
            if ne is not None:
                points.append((so_far, ne))
        return points

    @property
    def ne_recent(self) -> float | None:
        """NE of the last two buckets of the curve."""
        return self._ne_of(LossSums.over(self._ne, _LATEST))

    def curves(self, now: float) -> dict[str, tuple[float, list[tuple[float, float]]]]:
        """Return all curves by name, each with its bucket width.

        Throughput has complete buckets only.
        """
        curves = {"ne": (self._ne.width, self.ne_curve())}
        for trainer, points in self.throughput_curves().items():
            ended = [point for point in points if point[0] <= now]
            curves[f"throughput/{trainer}"] = (self._throughput[trainer].width, ended)
        for trainer, points in self.gap_curves().items():
            curves[f"gap/{trainer}"] = (self._gap[trainer].width, points)
        return curves

    def throughput_curves(self) -> dict[str, list[tuple[float, float]]]:
        """Return (seconds, examples per second) by trainer."""
        return {
            trainer: [(end, sums[0] / buckets.width) for end, sums in buckets.sums()]
            for trainer, buckets in sorted(self._throughput.items())
        }

    def gap_curves(self) -> dict[str, list[tuple[float, float]]]:
        """Return (seconds, iterations between rounds) by trainer."""
        return {
            trainer: [(end, sums[0] / sums[1]) for end, sums in buckets.sums() if sums[1]]
            for trainer, buckets in sorted(self._gap.items())
        }


class NodeRates:
    """The heartbeats of the last WINDOW_SECONDS by node. Owned by the coordinator's loop.

    A node without a heartbeat for STALE_SECONDS has no rates.
    """

    def __init__(self) -> None:
        self._beats: dict[str, deque[tuple[float, dict[str, Any]]]] = {}

    def record_heartbeat(self, node: str, seconds: float, metrics: dict[str, Any]) -> None:
        """Add a heartbeat, `seconds` after the start.

        `metrics` is kept, not copied.
        """
        beats = self._beats.setdefault(node, deque())
        beats.append((seconds, metrics))
        while seconds - beats[0][0] > WINDOW_SECONDS and len(beats) > 2:
            beats.popleft()

    def of(self, node: str, key: str, now: float) -> float | None:
        """Return the growth of one count per second; None if unknown."""
        beats = self._beats.get(node)
        if not beats or len(beats) < 2 or now - beats[-1][0] > STALE_SECONDS:
            return None
        # A count is missing until the part that counts it has started.
        known = [(seconds, metrics[key]) for seconds, metrics in beats if key in metrics]
        if len(known) < 2 or known[-1][0] <= known[0][0]:
            return None
        grown: float = known[-1][1] - known[0][1]
        return max(0.0, grown) / (known[-1][0] - known[0][0])

    def total(self, nodes: list[str], key: str, now: float) -> float | None:
        """Return the sum over nodes; None if no node has it."""
        rates = [rate for node in nodes if (rate := self.of(node, key, now)) is not None]
        return sum(rates) if rates else None


@dataclass(frozen=True, slots=True)
class Expected:
    """Number of examples in all epochs, perhaps estimated."""

    examples: int
    exact: bool


@dataclass(frozen=True)
class InputSnapshot:
    """What was read of an input of this size."""

    read_weight: float
    read_examples: int
    exact: bool


class InputSize:
    """Estimated examples per span; owned by the coordinator's loop.

    Args:
        weights: the weight of each span by number, in any unit; spans that were read show the examples per
            unit.
        examples: the estimated examples per unit; None until a span was read.
        exact: whether the weights are examples.
    """

    def __init__(
        self, weights: dict[int, float], epochs: int, examples: float | None, *, exact: bool
    ) -> None:
        self._weights = weights
        self._total = sum(weights.values()) * epochs
        self._per_unit = examples
        self._exact = exact
        self._read_weight = 0.0
        self._read_examples = 0

    @classmethod
    def unknown(cls) -> InputSize:
        """Return an input without any estimate yet."""
        return cls({}, 1, None, exact=False)

    def span_read(self, number: int, examples: int, bad_rows: int) -> None:
        """Record that a whole span was read."""
        self._read_weight += self._weights.get(number, 0.0)
        self._read_examples += examples
        if self._exact and self._weights.get(number) != examples + bad_rows:
            # Not every row of the file belongs to this part of the data.
            self._exact = False

    def span_unread(self, number: int, examples: int) -> None:
        """Record that a span is to be read again."""
        self._read_weight -= self._weights.get(number, 0.0)
        self._read_examples -= examples

    def snapshot(self) -> InputSnapshot:
        """Return what was read so far."""
        return InputSnapshot(self._read_weight, self._read_examples, self._exact)

    def restore(self, snapshot: InputSnapshot) -> None:
        self._read_weight, self._read_examples = snapshot.read_weight, snapshot.read_examples
        self._exact = snapshot.exact

    def expected(self, bad_rows: int) -> Expected | None:
        """Return the expected examples of the whole job, given its bad rows so far.

        Returns None if unknown.
        """
        if self._exact:
            return Expected(int(self._total) - bad_rows, exact=True)
        per_unit = self._read_examples / self._read_weight if self._read_weight else self._per_unit
        if per_unit is None:
            return None
        left = max(0.0, self._total - self._read_weight)
        return Expected(round(self._read_examples + left * per_unit), exact=False)


@dataclass(frozen=True)
class Origin:
    """The origin of a resumed run; all empty for a new one.

    Attributes:
        run: the name of the run before.
        digest: digest of the checkpoint.
        applied_before: by shard, the batches that it had applied but the saved ledger lacks.
        input_is_known: whether the checkpoint lists the spans, since nobody can plan them again.
    """

    run: str = ""
    digest: str = ""
    applied_before: Mapping[str, frozenset[BatchId]] = field(default_factory=dict)
    input_is_known: bool = False


@dataclass(frozen=True)
class InputFacts:
    """Facts of the job's input.

    Attributes:
        progressive: numbers of the spans whose batches are scored before their step.
        id_classes: the type that ids are read as, by table.
        label_rates: rate of each label in a sample of the training rows; () if they were not needed.
        grant_key: key of the proofs that readers were given spans.
    """

    size: InputSize
    progressive: frozenset[int] = frozenset()
    id_classes: Mapping[str, IdClass] = field(default_factory=dict)
    label_rates: tuple[float, ...] = ()
    grant_key: str = ""


@dataclass
class DivergenceCurve:
    """Points (seconds, divergence); at MAX_POINTS, every second one is dropped."""

    points: list[tuple[float, float]] = field(default_factory=list)
    period_seconds: float = FIRST_PERIOD_SECONDS

    def add(self, seconds: float, value: float) -> None:
        self.points.append((seconds, value))
        if len(self.points) >= MAX_POINTS:
            self.points, self.period_seconds = self.points[::2], self.period_seconds * 2
