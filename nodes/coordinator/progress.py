"""What the coordinator measures of a run while it goes on: the curves and the training time."""

from __future__ import annotations

import math
from typing import Any

from ...pipeline.metrics import Buckets


def entropy(mean: float) -> float | None:
    """Entropy in nats of a label with this mean; None where all labels are the same."""
    if not 0.0 < mean < 1.0:
        return None
    return -(mean * math.log(mean) + (1 - mean) * math.log(1 - mean))


def normalized_entropy(weight: float, loss_sum: float, positives: float) -> float | None:
    """Log loss over the entropy of the mean label, from weighted sums; None where that is nothing."""
    base = entropy(positives / weight) if weight else None
    return loss_sum / weight / base if base else None


class Tally:
    """Sums of what trainers acknowledge, and gaps from their heartbeats. Times are seconds since the start.

    Where a job has sample weights, the sums of losses and positives are weighted by them, and so is NE.
    Owned by the coordinator's loop.
    """

    def __init__(self) -> None:
        self.examples = 0
        self.loss_sum = 0.0
        self.positives = 0.0
        self.weight = 0.0
        self.first_seconds: float | None = None
        self.last_seconds: float | None = None
        self._ne = Buckets(4096, 4)
        self._throughput: dict[str, Buckets] = {}
        self._gap: dict[str, Buckets] = {}
        self._gap_seen: dict[str, tuple[int, int]] = {}
        self._examples_of: dict[str, int] = {}

    def trained(
        self,
        trainer: str,
        seconds: float,
        examples: int,
        loss_sum: float,
        positives: float,
        weight: float | None = None,
    ) -> None:
        """A batch was trained; its loss is that before its step (progressive validation). `weight` is the sum
        of its sample weights, by default 1 each."""
        weight = float(examples) if weight is None else weight
        self._ne.add(self.examples, examples, loss_sum, positives, weight)
        self.weight += weight
        self.examples += examples
        self.loss_sum += loss_sum
        self.positives += positives
        self._examples_of[trainer] = self._examples_of.get(trainer, 0) + examples
        self.first_seconds = seconds if self.first_seconds is None else min(self.first_seconds, seconds)
        self.last_seconds = seconds if self.last_seconds is None else max(self.last_seconds, seconds)
        self._throughput.setdefault(trainer, Buckets(0.5, 1)).add(max(0.0, seconds), examples)

    def pulse(self, trainer: str, seconds: float, metrics: dict[str, Any]) -> None:
        """A trainer's heartbeat: how many iterations a round took since the last one."""
        iterations, rounds = int(metrics.get("iterations", 0)), int(metrics.get("rounds", 0))
        before = self._gap_seen.get(trainer, (0, 0))
        if iterations == before[0]:
            return
        buckets = self._gap.setdefault(trainer, Buckets(0.5, 2))
        if rounds > before[1]:
            self._gap_seen[trainer] = (iterations, rounds)
            buckets.add(seconds, iterations - before[0], rounds - before[1])
        else:
            # No round since: the gap so far, which grows from heartbeat to heartbeat.
            buckets.add(seconds, float(metrics.get("gap_open", 0)), 1)

    @property
    def seconds(self) -> float:
        """From the first to the last trained batch."""
        if self.first_seconds is None or self.last_seconds is None:
            return 0.0
        return self.last_seconds - self.first_seconds

    @property
    def ne_progressive(self) -> float | None:
        """Normalized entropy of all that was trained, each batch scored before its step."""
        return normalized_entropy(self.weight, self.loss_sum, self.positives)

    def examples_per_second(self) -> float | None:
        """Over all trainers."""
        return self.examples / self.seconds if self.seconds > 0 else None

    def per_trainer(self) -> dict[str, float]:
        """Examples/s by trainer, over the same time."""
        if self.seconds <= 0:
            return {}
        return {trainer: count / self.seconds for trainer, count in sorted(self._examples_of.items())}

    def ne_curve(self) -> list[tuple[float, float]]:
        """(examples so far, NE of those since the last point)."""
        points = []
        so_far = 0.0
        for _, (examples, loss_sum, positives, weight) in self._ne.sums():
            so_far += examples
            ne = normalized_entropy(weight, loss_sum, positives)
            if ne is not None:
                points.append((so_far, ne))
        return points

    @property
    def ne_recent(self) -> float | None:
        """Of the last stretch: the last two buckets of the curve."""
        last = [sums for _, sums in self._ne.sums()[-2:]]
        if not last:
            return None
        _, loss_sum, positives, weight = (sum(column) for column in zip(*last, strict=True))
        return normalized_entropy(weight, loss_sum, positives)

    def curves(self, now: float) -> dict[str, tuple[float, list[tuple[float, float]]]]:
        """All curves by name, each with the width of its buckets; of throughput those that have ended."""
        curves = {"ne": (self._ne.width, self.ne_curve())}
        for trainer, points in self.throughput_curves().items():
            ended = [point for point in points if point[0] <= now]
            curves[f"throughput/{trainer}"] = (self._throughput[trainer].width, ended)
        for trainer, points in self.gap_curves().items():
            curves[f"gap/{trainer}"] = (self._gap[trainer].width, points)
        return curves

    def throughput_curves(self) -> dict[str, list[tuple[float, float]]]:
        """By trainer: (seconds, examples/s)."""
        return {
            trainer: [(end, sums[0] / buckets.width) for end, sums in buckets.sums()]
            for trainer, buckets in sorted(self._throughput.items())
        }

    def gap_curves(self) -> dict[str, list[tuple[float, float]]]:
        """By trainer: (seconds, iterations between rounds)."""
        return {
            trainer: [(end, sums[0] / sums[1]) for end, sums in buckets.sums() if sums[1]]
            for trainer, buckets in sorted(self._gap.items())
        }
