"""Seeded schedule of faults."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ...pipeline.text.format import duration, percent

# The share of jobs with two faults at once.
PAIRED_SHARE: Final = 0.25
SHORTEST_SECONDS: Final = 1.0
# Faults come between these shares of the job's batches; the job may end before a later fault is injected.
FIRST_SHARE: Final = 0.02
LAST_SHARE: Final = 0.95
# A fault of a soak is early or late by at most this share of the time between two.
JITTER_SHARE: Final = 0.25
# Ten minutes and a day, either way.
JUMPS_SECONDS: Final = (-86_400.0, -600.0, 600.0, 86_400.0)


class FaultKind(NamedTuple):
    """A kind of fault.

    Attributes:
        weight: how often it comes, relative to the other chosen kinds.
        phrase: what happened to a node of a role, in words.
        lasts: whether it has a duration.
    """

    weight: int
    phrase: str
    lasts: bool = True


FAULT_KINDS: Final[Mapping[str, FaultKind]] = {
    "kill": FaultKind(17, "killed", lasts=False),
    "stop": FaultKind(3, "stopped"),
    "reset": FaultKind(3, "link reset", lasts=False),
    "cut": FaultKind(3, "link cut"),
    "stall": FaultKind(3, "link stalled"),
    "delay": FaultKind(3, "link delayed"),
    "disk": FaultKind(3, "disk full"),
    "clock": FaultKind(3, "clock jumped"),
}


@dataclass(frozen=True, slots=True)
class ScheduledFault:
    """One fault at a node of a role.

    Attributes:
        kind: "kill" is SIGKILL, "stop" is SIGSTOP and later SIGCONT; "reset", "cut", "stall" and "delay" are
            of all links to the node (see `LinkFault`); with "disk" its processes can write no file; with
            "clock" their wall clock jumps, and later jumps back.
        place: which of the role's living processes, or of its nodes, modulo their number.
        after: share of the job's batches that are trained by then; None in a soak.
        seconds: its duration; 0 for a kill and a reset.
        jump_seconds: by how much the clock is wrong meanwhile; 0 for other kinds.
        soak_seconds: in a soak, the seconds that its jobs with faults have trained by then.
    """

    kind: str
    role: str
    place: int
    after: float | None
    seconds: float = 0.0
    jump_seconds: float = 0.0
    soak_seconds: float = 0.0

    @property
    def label(self) -> str:
        """The role and what happened to it: the row of the table."""
        return f"{self.role} {FAULT_KINDS[self.kind].phrase}"

    def __str__(self) -> str:
        lasting = f" for {duration(self.seconds)}" if self.seconds else ""
        sign = "-" if self.jump_seconds < 0 else "+"
        jump = f" by {sign}{duration(abs(self.jump_seconds))}" if self.jump_seconds else ""
        moment = duration(self.soak_seconds) if self.after is None else percent(self.after)
        return f"{self.label}{jump}{lasting} after {moment}"


def schedule(
    count: int, seed: int, nodes: Mapping[str, int], kinds: Sequence[str], longest_seconds: float
) -> list[list[ScheduledFault]]:
    """Return the faults of each job, one or two at once; `count` in all.

    Roles take turns, so that each gets its share.

    Args:
        nodes: number of nodes by role; roles with none get no fault.
        kinds: kinds of faults, of `FAULT_KINDS`.
        longest_seconds: longest duration of a fault; kinds that last are left out if it is shorter than 1 s.
    """
    draw = random.Random(seed)
    roles = [role for role, number in nodes.items() if number]
    used = lasting_at_most(kinds, longest_seconds)
    order: list[str] = []
    jobs: list[list[ScheduledFault]] = []
    done = 0
    while done < count:
        after = draw.uniform(FIRST_SHARE, LAST_SHARE)
        faults = [_fault(draw, _next_role(draw, order, roles), after, used, longest_seconds)]
        if done + 1 < count and draw.random() < PAIRED_SHARE:
            faults.append(_fault(draw, _next_role(draw, order, roles), after, used, longest_seconds))
        done += len(faults)
        jobs.append(faults)
    return jobs


def soak_faults(
    every_seconds: float,
    seed: int,
    nodes: Mapping[str, int],
    kinds: Sequence[str],
    longest_seconds: float,
) -> Iterator[ScheduledFault]:
    """Draw one fault in each `every_seconds`, without end; the other arguments are as of `schedule`.

    The k-th comes within JITTER_SHARE of `every_seconds` of its time, k times `every_seconds`.
    """
    draw = random.Random(seed)
    roles = [role for role, number in nodes.items() if number]
    used = lasting_at_most(kinds, longest_seconds)
    order: list[str] = []
    for number in itertools.count(1):
        moment = every_seconds * (number + draw.uniform(-JITTER_SHARE, JITTER_SHARE))
        fault = _fault(draw, _next_role(draw, order, roles), None, used, longest_seconds)
        yield replace(fault, soak_seconds=round(moment, 3))


def lasting_at_most(kinds: Sequence[str], longest_seconds: float) -> list[str]:
    """Return the kinds that can come: if the longest is shorter than 1 s, those without a duration."""
    return [kind for kind in kinds if longest_seconds >= SHORTEST_SECONDS or not FAULT_KINDS[kind].lasts]


def _next_role(draw: random.Random, order: list[str], roles: Sequence[str]) -> str:
    if not order:
        order.extend(draw.sample(list(roles), len(roles)))
    return order.pop()


def _fault(
    draw: random.Random, role: str, after: float | None, kinds: Sequence[str], longest: float
) -> ScheduledFault:
    (kind,) = draw.choices(kinds, [FAULT_KINDS[kind].weight for kind in kinds])
    seconds = draw.uniform(SHORTEST_SECONDS, longest) if FAULT_KINDS[kind].lasts else 0.0
    place = draw.randrange(64)
    jump = draw.choice(JUMPS_SECONDS) if kind == "clock" else 0.0
    return ScheduledFault(kind, role, place, after, round(seconds, 3), jump)
