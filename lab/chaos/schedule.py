"""Seeded schedule of faults."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...pipeline.text.format import duration, percent

# The share of faults that are stops, and the share of jobs with two faults at once.
STOPPED_SHARE: Final = 0.15
PAIRED_SHARE: Final = 0.25
SHORTEST_STOP_SECONDS: Final = 1.0
# Faults come between these shares of the job's batches; the job may end before a later fault is injected.
FIRST_SHARE: Final = 0.02
LAST_SHARE: Final = 0.95


@dataclass(frozen=True, slots=True)
class ProcessFault:
    """One fault at a node of a role.

    Attributes:
        place: which of the role's living processes, modulo their number.
        after: share of the job's batches that are trained by then.
        stop_seconds: duration of a stop (SIGSTOP); 0 for a kill (SIGKILL).
    """

    role: str
    place: int
    after: float
    stop_seconds: float = 0.0

    def __str__(self) -> str:
        how = f"stopped for {duration(self.stop_seconds)}" if self.stop_seconds else "killed"
        return f"{self.role} {how} after {percent(self.after)}"


def schedule(
    kills: int, seed: int, counts: Mapping[str, int], longest_stop: float
) -> list[list[ProcessFault]]:
    """Return the faults of each job, one or two at once; `kills` in all.

    Roles take turns, so that each gets its share.

    Args:
        counts: number of nodes by role; roles with none get no fault.
        longest_stop: longest SIGSTOP, in seconds.
    """
    draw = random.Random(seed)
    roles = [role for role, count in counts.items() if count]
    order: list[str] = []
    jobs: list[list[ProcessFault]] = []
    done = 0
    while done < kills:
        after = draw.uniform(FIRST_SHARE, LAST_SHARE)
        faults = [_fault(draw, _next_role(draw, order, roles), after, longest_stop)]
        if done + 1 < kills and draw.random() < PAIRED_SHARE:
            faults.append(_fault(draw, _next_role(draw, order, roles), after, longest_stop))
        done += len(faults)
        jobs.append(faults)
    return jobs


def _next_role(draw: random.Random, order: list[str], roles: Sequence[str]) -> str:
    if not order:
        order.extend(draw.sample(list(roles), len(roles)))
    return order.pop()


def _fault(draw: random.Random, role: str, after: float, longest_stop: float) -> ProcessFault:
    stops = draw.random() < STOPPED_SHARE and longest_stop > SHORTEST_STOP_SECONDS
    seconds = draw.uniform(SHORTEST_STOP_SECONDS, longest_stop) if stops else 0.0
    return ProcessFault(role, draw.randrange(64), after, round(seconds, 3))
