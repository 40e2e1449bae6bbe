"""The trainers of a center's merges in the orders in which a merge asks for them."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from .sorted_values import SortedValues

USUAL_TURNAROUNDS = 8
"""So many of a trainer's last times from an answer to its next contribution are kept."""


@dataclass(eq=False)
class Member:
    """A trainer that takes part.

    `answered_seconds` is the time of the last merge that had it, without the `idle_seconds` that had passed
    until then (see `MergeWindow`), `turnarounds` the seconds from such a time to its next contribution, idle
    ones too, and `usual` their median, infinite if none is known. `trains` says whether it trains, as far as
    its last contribution shows, and `seen` how many contributions with examples there were until then.
    """

    answered_seconds: float = -math.inf
    idle_seconds: float = 0.0
    turnarounds: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_TURNAROUNDS))
    usual: float = math.inf
    trains: bool = True
    seen: int = 0
    queued: int = 0

    def took(self, seconds: float) -> None:
        """Record a turnaround."""
        self.turnarounds.append(seconds)
        self.usual = median(self.turnarounds)

    @property
    def is_known(self) -> bool:
        """Whether it trains, and a turnaround is known."""
        return self.trains and bool(self.turnarounds)

    @property
    def expected_seconds(self) -> float:
        """When its next contribution is expected, if a turnaround is known."""
        return self.answered_seconds + self.usual


class UsualTurnarounds:
    """The turnarounds of all members that are known. Nothing looks at all of them."""

    def __init__(self) -> None:
        self._usuals = SortedValues()
        self._apart = SortedValues()

    def __len__(self) -> int:
        return len(self._usuals)

    def add(self, member: Member) -> None:
        """Add a member's; until it is removed they may not change."""
        self._usuals.add(member.usual)
        for seconds in member.turnarounds:
            self._apart.add(abs(seconds - member.usual))

    def remove(self, member: Member) -> None:
        """Remove a member's."""
        self._usuals.remove(member.usual)
        for seconds in member.turnarounds:
            self._apart.remove(abs(seconds - member.usual))

    def median(self) -> float:
        """Return the median of what each usually takes."""
        return self._usuals.median()

    def lower_median(self) -> float:
        """Return that median, and with an even number of members the lower one."""
        return self._usuals[(len(self._usuals) - 1) // 2]

    def median_apart(self) -> float:
        """Return the median deviation of turnarounds from what their member usually takes."""
        return self._apart.median()


class ExpectedMembers:
    """Members that are known and not in the open merge, by when they are expected.

    One is given up that is overdue by another turnaround, and by a least time that may change from question
    to question. Questions look at none but those that have become overdue since the last one. Times never go
    back.
    """

    def __init__(self) -> None:
        self._expected = SortedValues()
        self._overdue = SortedValues()
        self._queue: list[tuple[float, int, Member]] = []
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._expected)

    def add(self, member: Member) -> None:
        """Expect a member; until it is removed it may not change."""
        self._expected.add(member.expected_seconds)
        member.queued = next(self._numbers)
        overdue_seconds = member.expected_seconds + member.usual
        heapq.heappush(self._queue, (overdue_seconds, member.queued, member))

    def remove(self, member: Member) -> None:
        """Expect a member no longer."""
        self._expected.remove(member.expected_seconds)
        if not member.queued:
            self._overdue.remove(member.expected_seconds)
        # What the queue has of it is not valid any more.
        member.queued = 0

    def given_up(self, least: float, now: float) -> int:
        """Return how many are overdue by another turnaround, and by `least` seconds."""
        self._pass_overdue(now)
        return self._overdue.count_within(now, least)

    def next_given_up_seconds(self, least: float, now: float) -> float:
        """Return a time until which no other is given up; after `now`, infinite if there is no other."""
        given_up = self.given_up(least, now)
        of_overdue = self._overdue[given_up] + least if given_up < len(self._overdue) else math.inf
        return min(of_overdue, self._queue[0][0] if self._queue else math.inf)

    def last_expected_seconds(self, until: float) -> float:
        """Return the latest time until then at which one is expected; -inf if there is none."""
        within = self._expected.count_within(until)
        return self._expected[within - 1] if within else -math.inf

    def _pass_overdue(self, now: float) -> None:
        """Take those out of the queue that have become overdue by another turnaround."""
        while self._queue:
            overdue_seconds, number, member = self._queue[0]
            if member.queued == number:
                if overdue_seconds > now:
                    break
                member.queued = 0
                self._overdue.add(member.expected_seconds)
            heapq.heappop(self._queue)
