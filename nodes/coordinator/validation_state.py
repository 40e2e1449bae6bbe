"""Which of the validated checkpoints is the best, and when it is time to stop: no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...pipeline.config.validation_section import ValidationSection


@dataclass(frozen=True, slots=True)
class Scored:
    """The metric of a checkpoint that was validated, at so many trained examples, seconds after the start."""

    examples: int
    seconds: float
    value: float


@dataclass
class ValidationState:
    """Scores in, verdicts out. A score is the best if it is better than the best so far by `min_delta`."""

    settings: ValidationSection
    points: list[Scored] = field(default_factory=list)
    best: Scored | None = None
    without_improvement: int = 0
    failed: int = 0

    def improves(self, value: float) -> bool:
        """Whether a checkpoint of this value would be the best so far; changes nothing."""
        return self.best is None or self._better(value, self.best.value)

    def add(self, scored: Scored) -> bool:
        """A checkpoint was scored, and kept if it improves; gives whether it is the best so far."""
        best = self.improves(scored.value)
        self.points.append(scored)
        self.without_improvement = 0 if best else self.without_improvement + 1
        self.best = scored if best else self.best
        return best

    @property
    def exhausted(self) -> bool:
        """Whether training should end: `patience` validations in a row were no improvement."""
        return 0 < self.settings.patience <= self.without_improvement

    def _better(self, value: float, than: float) -> bool:
        gain = value - than if self.settings.metric == "auc" else than - value
        return gain > self.settings.min_delta
