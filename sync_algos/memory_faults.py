"""Faults of trainers in memory, and where in a round they happen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """Phase of a trainer's round; a center exchange has the last two for each slice."""

    MEETING = "as it comes to meet"
    MET = "when it has met"
    GIVING = "when it has handed its values over"
    TAKING = "when the result is decided and not yet here"


class Action(Enum):
    """A trainer dies (and stops running), leaves (and continues alone), or joins."""

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
