"""Faults of trainers in memory, and where in a round they happen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """A phase of a trainer's round.

    An exchange with a center has the last two phases for each slice.
    """

    MEETING = "is about to meet"
    MET = "has met"
    GIVING = "has handed its values over"
    TAKING = "is about to get the result, which is decided"


class Action(Enum):
    """A trainer's action: die (stop running), leave (continue alone) or join."""

    DIE = "dies"
    LEAVE = "leaves"
    JOIN = "joins"


@dataclass(frozen=True)
class Fault:
    """Trainer `who` does `action` when trainer `at` first reaches `phase` in the round."""

    who: int
    action: Action
    at: int
    phase: Phase

    def __str__(self) -> str:
        reaching = f"trainer {self.at}" if self.at != self.who else "it"
        return f"trainer {self.who} {self.action.value} when {reaching} {self.phase.value}"
