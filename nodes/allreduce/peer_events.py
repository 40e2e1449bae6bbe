"""What the all-reduce's state machine tells whoever drives it."""

from __future__ import annotations

from dataclasses import dataclass

from ...pipeline.types import Float32Array
from .early_chunks import RoundId


@dataclass(frozen=True, slots=True)
class Met:
    """The group is ready: take the snapshot and start the round."""

    id: RoundId
    group: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """The round is complete; `values` are the caller's from now on."""

    id: RoundId
    values: Float32Array


@dataclass(frozen=True, slots=True)
class Ended:
    """The round, or the wait for one, ended without a result."""

    id: RoundId
    why: str


@dataclass(frozen=True, slots=True)
class Late:
    """A peer is late; the coordinator should put it out."""

    generation: int
    index: int


@dataclass(frozen=True, slots=True)
class Excluded:
    """This trainer wants to meet, and is not of the group."""


Event = Met | Result | Ended | Late | Excluded
