"""The phases of a job, their order, and how far a job is."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from .outcome import Conclusion, Stop


class JobPhase(enum.Enum):
    """The phase of a job; the values are shown to people."""

    GATHERING = "waiting for nodes"
    STARTING = "starting"
    TRAINING = "training"
    CLOSING = "closing"
    STOPPING = "stopping"
    CHECKPOINT = "writing the checkpoint"
    VALIDATING = "validating"
    EVALUATING = "evaluating"
    EVALUATING_BEST = "evaluating the best checkpoint"
    DONE = "done"


# A job may be over after any phase; it may be stopped from its start to the end of training. A later
# interrupt cuts off a step, which begins again.
NEXT_PHASES: Final[Mapping[JobPhase, frozenset[JobPhase]]] = {
    JobPhase.GATHERING: frozenset({JobPhase.STARTING, JobPhase.DONE}),
    JobPhase.STARTING: frozenset({JobPhase.TRAINING, JobPhase.STOPPING, JobPhase.DONE}),
    JobPhase.TRAINING: frozenset({JobPhase.CLOSING, JobPhase.STOPPING, JobPhase.DONE}),
    JobPhase.CLOSING: frozenset({JobPhase.STOPPING, JobPhase.CHECKPOINT, JobPhase.DONE}),
    JobPhase.STOPPING: frozenset({JobPhase.CHECKPOINT, JobPhase.DONE}),
    JobPhase.CHECKPOINT: frozenset({JobPhase.CHECKPOINT, JobPhase.VALIDATING, JobPhase.DONE}),
    JobPhase.VALIDATING: frozenset({JobPhase.EVALUATING, JobPhase.DONE}),
    JobPhase.EVALUATING: frozenset({JobPhase.EVALUATING_BEST, JobPhase.DONE}),
    JobPhase.EVALUATING_BEST: frozenset({JobPhase.DONE}),
    JobPhase.DONE: frozenset(),
}


# After the last checkpoint, if one could be taken.
SCORING: Final = frozenset({JobPhase.VALIDATING, JobPhase.EVALUATING, JobPhase.EVALUATING_BEST})


class PhaseError(RuntimeError):
    """A phase that cannot follow the current one: a defect of the coordinator."""


class JobLifecycle:
    """How far a job is, why it stops, and how it ends. Owned by the coordinator's loop.

    Attributes:
        stop: the first reason to stop; None without one.
        training_began: CPU seconds of each node when training began, by name; None before.
        training_ended: why training ended before the end of its input, or empty; None while it goes on.
        conclusion: how the job ends; None until all that its nodes have to do is done.
        outcome: how it ended, for watchers.
        takeovers: number of coordinators that took over from a dead one.
    """

    def __init__(self) -> None:
        self.phase = JobPhase.GATHERING
        self.stop: Stop | None = None
        self.training_began: dict[str, float] | None = None
        self.training_ended: str | None = None
        self.conclusion: Conclusion | None = None
        self.outcome = "ended"
        self.takeovers = 0

    @property
    def is_training(self) -> bool:
        """Whether the job trains, with no stop requested."""
        return self.phase is JobPhase.TRAINING and self.stop is None

    @property
    def over(self) -> bool:
        """Whether nodes were told to end; a node that ends then is not dead."""
        return self.phase is JobPhase.DONE

    def enter(self, phase: JobPhase) -> None:
        """Enter the next phase; raises PhaseError if it cannot follow."""
        if phase not in NEXT_PHASES[self.phase]:
            raise PhaseError(f"{phase.name} cannot follow {self.phase.name}")
        self.phase = phase

    def begin_training(self, cpu_seconds: Mapping[str, float]) -> None:
        """Begin TRAINING; `cpu_seconds` are those that nodes have used before."""
        self.enter(JobPhase.TRAINING)
        self.training_began = dict(cpu_seconds)

    def end_training(self, ended_early: str) -> None:
        """Record the end of training, and why it came early, if so."""
        self.training_ended = ended_early

    def request_stop(self, stop: Stop) -> bool:
        """Record a reason to stop; return whether it is the first, which counts."""
        if self.stop is not None:
            return False
        self.stop = stop
        return True

    def conclude(self, conclusion: Conclusion) -> None:
        """Record how the job ends; only its nodes are still to be told."""
        self.conclusion = conclusion

    def finish(self, outcome: str) -> None:
        """End the job; `outcome` is reported to watchers."""
        self.enter(JobPhase.DONE)
        self.outcome = outcome

    def replace_coordinator(self) -> None:
        """Record that another coordinator has taken over."""
        self.takeovers += 1
