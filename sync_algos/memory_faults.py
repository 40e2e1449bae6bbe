"""What may happen to a trainer in memory, and where in a round."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """Where in a round a trainer is; a center's exchange has the last two of them for each slice."""

    MEETING = "as it comes to meet"
    MET = "when it has met"
    GIVING = "when it has handed its values over"
    TAKING = "when the result is decided and not yet here"


class Action(Enum):
    """What happens to a trainer: it dies (and runs no further), leaves (and goes on alone), or joins."""

    DIE = "dies"
    LEAVE = "leaves"
    JOIN = "joins"


@dataclass(frozen=True)
class Fault:
    """`who` does `action` when trainer `at` reaches `phase` for the first time in the round."""

    who: int
    action: Action
    at: int
    phase: Phase

    def __str__(self) -> str:
        where = f"trainer {self.at} is there" if self.at != self.who else "it is there"
        return f"trainer {self.who} {self.action.value} ({where}: {self.phase.value})"
