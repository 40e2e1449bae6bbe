"""The checkpoints and validations of a job's training: data and transitions, without I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from .outcome import Scored


@dataclass
class CheckpointingState:
    """The checkpoints and validations of training so far. Owned by the coordinator's loop.

    Attributes:
        best_before: score of the resumed run's best checkpoint, if this run began with it.
        scored: scores of checkpoints, in order.
        written: number of checkpoints.
        pauses: how often training has waited for a validation.
        is_paused: whether it waits now.
    """

    best_before: Scored | None = None
    scored: list[Scored] = field(default_factory=list)
    written: int = 0
    pauses: int = 0
    is_paused: bool = False

    def begin_with(self, best: Scored) -> None:
        """Record the score of the resumed run's best checkpoint."""
        self.best_before = best

    def count_written(self) -> None:
        self.written += 1

    def pause(self) -> int:
        """Record that training waits for a validation; return the pause's number, from 1."""
        self.pauses += 1
        self.is_paused = True
        return self.pauses

    def end_pause(self) -> None:
        """Record that training has resumed, or ends."""
        self.is_paused = False
