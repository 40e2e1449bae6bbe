"""When a center closes a merge: a state machine without I/O or clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from statistics import median

from ..base import MergeTerms

USUAL_TURNAROUNDS = 16
"""So many of a trainer's last times from an answer to its next contribution are kept."""

LEAST_DEVIATION = 1 / 20
"""Of the median: trainers that are never apart may be once."""


@dataclass
class _Member:
    """A trainer that takes part.

    `answered_seconds` is the time of the last merge that had it, `turnarounds` the seconds from such a time
    to its next contribution. `trains` says whether there were examples behind its last contribution.
    """

    answered_seconds: float | None = None
    turnarounds: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_TURNAROUNDS))
    trains: bool = True


class MergeWindow:
    """The open merge of one slice, and who is waited for.

    A merge opens with its first contribution. It closes

    - when every trainer that takes part has contributed, or
    - when `MergeTerms.quorum` of them have, and none of the others is likely to come in time, or
    - `MergeTerms.longest_wait_seconds` after its first contribution.

    In time is until the grace is over. A turnaround is the time from a trainer's answer to its next
    contribution. With T the median of all recent ones, M their median absolute deviation (at least T / 20)
    and k the grace, it is over T + k M after the last answer. A trainer is likely to come in time if its own
    median turnaround is over by then, and not for more than k M yet. So one that stands still is waited for
    once, and one that is slower than the others joins the merges that it can reach. A trainer of which no
    turnaround is known is not waited for: at the start of a job others may begin much later.

    A trainer without examples behind its last contribution counts neither for the quorum nor for T and M.

    Times are seconds by any clock that never goes back. One thread calls.

    Args:
        terms: returns the terms for the number of trainers that take part.
    """

    def __init__(self, terms: Callable[[int], MergeTerms]) -> None:
        self._terms = terms
        self._members: dict[Hashable, _Member] = {}
        self._contributed: list[Hashable] = []
        self._opened_seconds = 0.0

    @property
    def is_open(self) -> bool:
        """Whether there is a contribution that is not merged."""
        return bool(self._contributed)

    @property
    def trainers(self) -> int:
        """Return how many trainers take part: those that train, and those of the open merge."""
        training = {name for name, member in self._members.items() if member.trains}
        return len(training.union(self._contributed))

    def contributed(self, name: Hashable, examples: int, now: float) -> None:
        """Record a trainer's contribution to the open merge.

        Raises ValueError if it has contributed already.
        """
        if name in self._contributed:
            raise ValueError("a trainer contributes once to a merge")
        member = self._members.setdefault(name, _Member())
        member.trains = examples > 0
        if member.answered_seconds is not None:
            member.turnarounds.append(now - member.answered_seconds)
        if not self._contributed:
            self._opened_seconds = now
        self._contributed.append(name)

    def closes_at(self, now: float) -> float:
        """Return when the open merge closes if nobody contributes until then; at most `now` for at once.

        Infinite if no merge is open.
        """
        if not self._contributed:
            return math.inf
        missing = [member for name, member in self._members.items() if name not in self._contributed]
        if not missing:
            return now
        trainers = self.trainers
        terms = self._terms(trainers)
        latest = self._opened_seconds + terms.longest_wait_seconds
        if len(self._contributed) < min(terms.quorum, trainers):
            return latest
        return min(latest, max(now, self._waited_until(missing, terms.grace, now)))

    def close(self, now: float) -> tuple[Hashable, ...]:
        """Close the merge; return its trainers in the order of their names."""
        merged = tuple(sorted(self._contributed, key=repr))
        for name in merged:
            # Unless it died meanwhile.
            if (member := self._members.get(name)) is not None:
                member.answered_seconds = now
        self._contributed = []
        return merged

    def forget(self, name: Hashable) -> None:
        """Wait no longer for a trainer that died or left; what it has contributed stays."""
        self._members.pop(name, None)

    def _waited_until(self, missing: list[_Member], grace: float, now: float) -> float:
        """Return the time until which a missing trainer may still come; 0 if none is likely to."""
        training = [member for member in self._members.values() if member.trains]
        usual = [seconds for member in training for seconds in member.turnarounds]
        if not usual:
            return 0.0
        middle = median(usual)
        deviation = median(abs(seconds - middle) for seconds in usual)
        spread = grace * max(deviation, LEAST_DEVIATION * middle)
        answered = max(member.answered_seconds or 0.0 for member in self._members.values())
        over = answered + middle + spread
        likely = [
            member.answered_seconds + median(member.turnarounds)
            for member in missing
            if member.turnarounds and member.answered_seconds is not None
        ]
        coming = [expected for expected in likely if expected <= over and expected + spread > now]
        return min(over, max(coming) + spread) if coming else 0.0
