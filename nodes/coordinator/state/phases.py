"""The phases of a job, and their order."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


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


# A job may be over after any phase; it may be stopped from its start to the end of training.
NEXT_PHASES: Final[Mapping[JobPhase, frozenset[JobPhase]]] = {
    JobPhase.GATHERING: frozenset({JobPhase.STARTING, JobPhase.DONE}),
    JobPhase.STARTING: frozenset({JobPhase.TRAINING, JobPhase.STOPPING, JobPhase.DONE}),
    JobPhase.TRAINING: frozenset({JobPhase.CLOSING, JobPhase.STOPPING, JobPhase.DONE}),
    JobPhase.CLOSING: frozenset({JobPhase.CHECKPOINT, JobPhase.DONE}),
    JobPhase.STOPPING: frozenset({JobPhase.CHECKPOINT, JobPhase.DONE}),
    JobPhase.CHECKPOINT: frozenset({JobPhase.VALIDATING, JobPhase.DONE}),
    JobPhase.VALIDATING: frozenset({JobPhase.EVALUATING, JobPhase.DONE}),
    JobPhase.EVALUATING: frozenset({JobPhase.EVALUATING_BEST, JobPhase.DONE}),
    JobPhase.EVALUATING_BEST: frozenset({JobPhase.DONE}),
    JobPhase.DONE: frozenset(),
}


class PhaseError(RuntimeError):
    """A phase that cannot follow the current one: a defect of the coordinator."""
