"""Verdicts on deaths: whether a job can continue without a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from ....pipeline.errors import ExitCode
from ....pipeline.text.format import duration
from ....sync_algos.contract.model_origin import ModelOrigin
from ...control.membership import Member, Membership
from ..ledger.ledger import LedgerState
from .lone_start import LoneStart
from .outcome import Stop
from .phases import SCORING, JobLifecycle, JobPhase
from .training import TrainingState
from .vacancies import Vacancies

# Of missing nodes in one line.
NAMED_PLACES: Final = 8


class JobView(Protocol):
    """What a verdict depends on; `JobState` has it."""

    @property
    def members(self) -> Membership:
        """The nodes."""
        ...

    @property
    def lifecycle(self) -> JobLifecycle:
        """How far it is."""
        ...

    @property
    def ledger(self) -> LedgerState:
        """What is trained."""
        ...

    @property
    def training(self) -> TrainingState:
        """How it is trained."""
        ...

    @property
    def lone_start(self) -> LoneStart:
        """Who waits while one trainer begins."""
        ...

    @property
    def vacancies(self) -> Vacancies:
        """The places without a node."""
        ...


def stop_for(state: JobView, dead: Member) -> Stop | None:
    """Return why the job cannot continue without this node, if it cannot."""
    name, role = dead.info.name, dead.info.role
    if not dead.begun:
        return None
    if role in ("embedding", "reader") and state.lifecycle.phase in (JobPhase.STARTING, JobPhase.TRAINING):
        # Another node may replace it.
        return None
    if role == "embedding":
        return lost_shard(dead, state.lifecycle.phase)
    if role == "reader" and not state.ledger.complete and not state.lifecycle.training_ended:
        return _stop(f"{name} died; the batches that it had not delivered are untrained")
    if role == "sync" and state.lifecycle.phase is JobPhase.TRAINING and not state.members.alive("trainer"):
        return _stop(f"{name} died while the job had no trainer, so the center is lost")
    if role == "trainer" and not state.members.alive("trainer") and not _can_replace_last_trainer(state):
        return lost_trainers()
    return None


def lost_shard(dead: Member, phase: JobPhase) -> Stop:
    """Return the stop for the death of an embedding node in this phase."""
    text = f"{dead.info.name} died, and its {dead.facts.rows:,} rows are lost"
    if phase in SCORING:
        # It had nothing left to write.
        text = f"{dead.info.name} died before the model was scored"
    return Stop("death", text, ExitCode.STOPPED_BY_DEATH, lost_shard=True)


def lost_trainers() -> Stop:
    """Return the stop for the death of the last trainer."""
    return _stop("the last trainer died")


def missing_nodes(
    members: Membership, silence_of: Callable[[Member], float], longest_silence_seconds: float
) -> str:
    """Name the places without a ready node, and say why each has none.

    `silence_of` returns the seconds since the last message of a living node.
    """

    def why(last: Member | None) -> str:
        if last is None:
            return "none joined"
        if not last.alive:
            return f"the last one {last.lost_because}"
        silence = silence_of(last)
        if silence > longest_silence_seconds:
            return f"joined, and has been silent for {duration(silence)}"
        return "joined, and still prepares"

    places = [f"{name} ({why(last)})" for name, last in members.missing_places().items()]
    some = places[:NAMED_PLACES]
    return ", ".join(some) + (f" and {len(places) - len(some)} more" if len(places) > len(some) else "")


def center_has_model(state: JobView) -> bool:
    """Return whether living sync nodes have the model without any trainer."""
    return _has_central_model(state.members.everyone("trainer")) and not state.vacancies.empty_slices()


def _can_replace_last_trainer(state: JobView) -> bool:
    """Return whether a trainer that waits, or a new one, could take over and train on."""
    phase = state.lifecycle.phase
    if state.ledger.complete or phase not in (JobPhase.STARTING, JobPhase.TRAINING):
        return False
    if state.lone_start.waiting():
        return True
    joins_late = phase is JobPhase.TRAINING and state.training.balancer is None
    return joins_late and center_has_model(state)


def _has_central_model(trainers: Iterable[Member]) -> bool:
    facts = [trainer.facts for trainer in trainers if trainer.ready]
    return any(fact.needs_center and fact.model_origin == ModelOrigin.CENTER for fact in facts)


def _stop(text: str) -> Stop:
    return Stop("death", text, ExitCode.STOPPED_BY_DEATH)
