"""What a death means for a job, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ....pipeline.errors import ExitCode
from ....pipeline.text.format import duration
from ....sync_algos.contract.model_origin import ModelOrigin
from ...control.membership import Member, Membership
from .outcome import Stop
from .phases import SCORING, JobPhase

# How many missing nodes are named in one line.
NAMED_PLACES: Final = 8


def lost_shard(dead: Member, phase: JobPhase) -> Stop:
    """Return the stop for the death of an embedding node in this phase."""
    text = f"{dead.info.name} died, and its {dead.facts.rows:,} rows are lost"
    if phase in SCORING:
        # Its rows were saved before.
        text = f"{dead.info.name} died before the model was scored"
    return Stop("death", text, ExitCode.STOPPED_BY_DEATH, lost_shard=True)


def lost_trainers() -> Stop:
    """Return the stop for the death of the last trainer."""
    return stop_by_death("the last trainer died")


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


def have_central_model(trainers: Iterable[Member]) -> bool:
    """Return whether the center of these trainers' algorithm is the model of the job."""
    facts = [trainer.facts for trainer in trainers if trainer.ready]
    return any(fact.needs_center and fact.model_origin == ModelOrigin.CENTER for fact in facts)


def stop_by_death(text: str) -> Stop:
    """Return the stop for the death of a node that the job needs."""
    return Stop("death", text, ExitCode.STOPPED_BY_DEATH)
