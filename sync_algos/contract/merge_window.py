"""When a center closes a merge: a state machine without I/O or clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from statistics import median, median_low

USUAL_TURNAROUNDS = 8
"""So many of a trainer's last times from an answer to its next contribution are kept."""

LEAST_DEVIATION = 1 / 20
"""Of the median: trainers that are never apart may be once."""

LATE_TURNAROUNDS = 2
"""A trainer is late after so many usual turnarounds of the others."""


@dataclass(frozen=True, slots=True)
class MergeTerms:
    """When a center closes a merge; see `MergeWindow`.

    `quorum` contributions are waited for, then the others for as long as they are usually apart: `grace`
    times the median absolute deviation. After `longest_wait_seconds` the merge closes in any case.
    """

    quorum: int
    grace: float
    longest_wait_seconds: float


@dataclass
class _Member:
    """A trainer that takes part.

    `answered_seconds` is the time of the last merge that had it, `turnarounds` the seconds from such a time
    to its next contribution, and `usual` their median, infinite if none is known. `trains` says whether there
    were examples behind its last contribution.
    """

    answered_seconds: float = -math.inf
    turnarounds: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_TURNAROUNDS))
    usual: float = math.inf
    trains: bool = True

    def took(self, seconds: float) -> None:
        """Record a turnaround."""
        self.turnarounds.append(seconds)
        self.usual = median(self.turnarounds)

    @property
    def expected_seconds(self) -> float:
        """When its next contribution is expected; -inf if no turnaround is known."""
        return self.answered_seconds + self.usual if self.turnarounds else -math.inf

    def given_up_seconds(self, least: float) -> float:
        """Return the time from which it is overdue by another turnaround, and by `least` seconds."""
        return self.expected_seconds + max(self.usual, least)

    def is_given_up(self, least: float, now: float) -> bool:
        """Return whether it is overdue by that; False if no turnaround is known."""
        return bool(self.turnarounds) and self.given_up_seconds(least) <= now


class MergeWindow:
    """The open merge of one slice, and who is waited for.

    A merge opens with its first contribution. It closes

    - when every trainer that is waited for has contributed, or
    - when `MergeTerms.quorum` have, and none of the others is likely to come in time, or
    - `MergeTerms.longest_wait_seconds` after its first contribution.

    A turnaround is the time from a trainer's answer to its next contribution; it is expected a median of its
    own turnarounds after its answer. With T the median of these medians, M the median absolute deviation from
    them (at least T / 20) and k the grace, it comes in time until T + k M after the last merge. It is likely
    to if it is expected by then, and not for more than k M yet. So one that stands still is waited for once,
    and one that is slower than the others joins the merges that it can reach.

    Given up, neither waited for nor counted for the quorum, is a trainer that is overdue by another
    turnaround. The same holds for one of which no turnaround is known (at the start of a job others may begin
    much later), and one without examples behind its last contribution, unless that is its first.

    Times are seconds by any clock that never goes back. One thread calls.

    Args:
        terms: returns the terms for the number of trainers that are waited for.
    """

    def __init__(self, terms: Callable[[int], MergeTerms]) -> None:
        self._terms = terms
        self._members: dict[Hashable, _Member] = {}
        self._contributed: list[Hashable] = []
        self._opened_seconds = 0.0
        self._closed_seconds = 0.0

    @property
    def is_open(self) -> bool:
        """Whether there is a contribution that is not merged."""
        return bool(self._contributed)

    def trainers(self, now: float) -> int:
        """Return how many trainers take part: the open merge's, and those that train and are not away.

        A trainer is away if it is overdue by `MergeTerms.longest_wait_seconds`, and by another turnaround.
        """
        away_seconds = self._terms(len(self._members)).longest_wait_seconds
        training = {
            name
            for name, member in self._members.items()
            if member.trains and not member.is_given_up(away_seconds, now)
        }
        return len(training.union(self._contributed))

    def absent(self) -> list[Hashable]:
        """Return the trainers that train and are not in the open merge."""
        return [
            name for name, member in self._members.items() if member.trains and name not in self._contributed
        ]

    def late_seconds(self, name: Hashable, now: float) -> float:
        """Return by how long a trainer is late that contributes now; ask before `contributed`.

        It is late after LATE_TURNAROUNDS turnarounds as usual, which is the median, and with an even number
        of trainers the lower one. 0 if it did not train, there was no answer to it, or no turnaround is
        known.
        """
        member, training = self._members.get(name), self._training()
        if member is None or not member.trains or not training or member.answered_seconds == -math.inf:
            return 0.0
        usual = median_low(one.usual for one in training)
        return max(0.0, now - member.answered_seconds - LATE_TURNAROUNDS * usual)

    def contributed(self, name: Hashable, examples: int, now: float) -> None:
        """Record a trainer's contribution to the open merge.

        Raises ValueError if it has contributed already.
        """
        if name in self._contributed:
            raise ValueError("a trainer contributes once to a merge")
        begins = name not in self._members
        member = self._members.setdefault(name, _Member())
        # The first round of a trainer has no examples behind it.
        member.trains = begins or examples > 0
        if member.answered_seconds > -math.inf:
            member.took(now - member.answered_seconds)
        if not self._contributed:
            self._opened_seconds = now
        self._contributed.append(name)

    def closes_at(self, now: float) -> float:
        """Return when to ask again if nobody contributes until then; at most `now` if the merge closes.

        Infinite if no merge is open.
        """
        if not self._contributed:
            return math.inf
        spread = self._spread_seconds()
        awaited = [
            member
            for name, member in self._members.items()
            if name not in self._contributed
            if member.trains and member.turnarounds and not member.is_given_up(spread, now)
        ]
        terms = self._terms(len(self._contributed) + len(awaited))
        latest = self._opened_seconds + terms.longest_wait_seconds
        if not awaited or now >= latest:
            return now
        if len(self._contributed) < terms.quorum:
            return min(latest, *(member.given_up_seconds(spread) for member in awaited))
        return min(latest, max(now, self._waited_until(awaited, spread, now)))

    def close(self, now: float) -> tuple[Hashable, ...]:
        """Close the merge; return its trainers in the order of their names."""
        merged = tuple(sorted(self._contributed, key=repr))
        for name in merged:
            # Unless it died meanwhile.
            if (member := self._members.get(name)) is not None:
                member.answered_seconds = now
        self._contributed, self._closed_seconds = [], now
        return merged

    def forget(self, name: Hashable) -> None:
        """Wait no longer for a trainer that died or left; what it has contributed stays."""
        self._members.pop(name, None)

    def _training(self) -> list[_Member]:
        """Return the members that train and have a turnaround."""
        return [member for member in self._members.values() if member.trains and member.turnarounds]

    def _usual_seconds(self) -> float:
        return median(member.usual for member in self._training())

    def _spread_seconds(self) -> float:
        """Return the grace's length; 0 while no turnaround is known."""
        training = self._training()
        if not training:
            return 0.0
        apart = [abs(seconds - one.usual) for one in training for seconds in one.turnarounds]
        grace = self._terms(len(training)).grace
        return grace * max(median(apart), LEAST_DEVIATION * self._usual_seconds())

    def _waited_until(self, awaited: list[_Member], spread: float, now: float) -> float:
        """Return the time until which one of these may still come; 0 if none is likely to."""
        over = self._closed_seconds + self._usual_seconds() + spread
        coming = [
            member.expected_seconds
            for member in awaited
            if member.expected_seconds <= over and member.expected_seconds + spread > now
        ]
        return min(over, max(coming) + spread) if coming else 0.0
