"""When a center closes a merge: a state machine without I/O or clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from .training_members import ExpectedMembers, Member, UsualTurnarounds

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


def merge_weights(examples: Sequence[int], moves: Callable[[int], bool]) -> tuple[int, ...]:
    """Return what each contribution to a merge weighs: the examples behind it.

    One without examples has zeros, or in a trainer's last round what codecs had lost of its others. The rest
    weighs as much as the others on average. `moves` says of a contribution, by its number, whether it has
    anything but zeros; it is asked only of those without examples.
    """
    behind = [count for count in examples if count]
    usual = max(1, sum(behind) // len(behind)) if behind else 1
    return tuple(count or usual * moves(number) for number, count in enumerate(examples))


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
    much later), and one that does not train: there were no examples behind its last contribution, but behind
    others' since the one before.

    A contribution takes O(log n) steps and a few passes over n / 100 blocks, never a look at all n trainers.

    Time in which nobody comes though all are expected does not count: all stand still then, as while the job
    validates, or before its last rounds. Nobody is late by it, nor away.

    Times are seconds by any clock that never goes back. One thread calls.

    Args:
        terms: returns the terms for the number of trainers that are waited for.
    """

    def __init__(self, terms: Callable[[int], MergeTerms]) -> None:
        self._terms = terms
        self._members: dict[Hashable, Member] = {}
        # Ordered sets, as the keys of dicts.
        self._contributed: dict[Hashable, None] = {}
        self._absent: dict[Hashable, None] = {}
        self._usual = UsualTurnarounds()
        self._expected = ExpectedMembers()
        self._opened_seconds = 0.0
        self._closed_seconds = 0.0
        # All times but those of questions and answers are without it.
        self._idle_seconds = 0.0
        # Contributions with examples behind them.
        self._with_examples = 0

    @property
    def is_open(self) -> bool:
        """Whether there is a contribution that is not merged."""
        return bool(self._contributed)

    def trainers(self, now: float) -> int:
        """Return how many trainers take part: the open merge's, and those that train and are not away.

        A trainer is away if it is overdue by `MergeTerms.longest_wait_seconds`, and by another turnaround.
        """
        away_seconds = self._terms(len(self._members)).longest_wait_seconds
        given_up = self._expected.given_up(away_seconds, self._without_idle(now))
        return len(self._contributed) + len(self._absent) - given_up

    def absent(self) -> list[Hashable]:
        """Return the trainers that train and are not in the open merge."""
        return list(self._absent)

    def late_seconds(self, name: Hashable, now: float) -> float:
        """Return by how long a trainer is late that contributes now; ask before `contributed`.

        It is late after LATE_TURNAROUNDS turnarounds as usual, which is the median, and with an even number
        of trainers the lower one. 0 if it did not train, there was no answer to it, or no turnaround is
        known.
        """
        member = self._members.get(name)
        if (
            member is None
            or not member.trains
            or not len(self._usual)
            or member.answered_seconds == -math.inf
        ):
            return 0.0
        usual = self._usual.lower_median()
        return max(0.0, self._without_idle(now) - member.answered_seconds - LATE_TURNAROUNDS * usual)

    def contributed(self, name: Hashable, examples: int, now: float) -> None:
        """Record a trainer's contribution to the open merge.

        Raises ValueError if it has contributed already.
        """
        if name in self._contributed:
            raise ValueError("a trainer contributes once to a merge")
        now = self._without_idle(now)
        begins = name not in self._members
        member = self._members.setdefault(name, Member())
        self._take_out(name, member)
        # The first round of a trainer has no examples behind it, and no round while all stand still.
        member.trains = begins or examples > 0 or member.seen == self._with_examples
        self._with_examples += examples > 0
        member.seen = self._with_examples
        if member.answered_seconds > -math.inf:
            member.took(now - member.answered_seconds + self._idle_seconds - member.idle_seconds)
        if member.is_known:
            self._usual.add(member)
        if not self._contributed:
            self._opened_seconds = now
        self._contributed[name] = None

    def closes_at(self, now: float) -> float:
        """Return when to ask again if nobody contributes until then; at most `now` if the merge closes.

        Infinite if no merge is open.
        """
        if not self._contributed:
            return math.inf
        own = self._without_idle(now)
        closes = self._closes_at(own)
        # Not by what rounding adds.
        return now if closes <= own else closes + self._idle_seconds

    def _closes_at(self, now: float) -> float:
        spread = self._spread_seconds()
        awaited = len(self._expected) - self._expected.given_up(spread, now)
        terms = self._terms(len(self._contributed) + awaited)
        latest = self._opened_seconds + terms.longest_wait_seconds
        if not awaited or now >= latest:
            return now
        if len(self._contributed) < terms.quorum:
            return min(latest, self._expected.next_given_up_seconds(spread, now))
        return min(latest, max(now, self._waited_until(spread, now)))

    def close(self, now: float) -> tuple[Hashable, ...]:
        """Close the merge; return its trainers in the order of their names."""
        now = self._without_idle(now)
        merged = tuple(sorted(self._contributed, key=repr))
        self._contributed, self._closed_seconds = {}, now
        for name in merged:
            # Unless it died meanwhile.
            if (member := self._members.get(name)) is not None:
                member.answered_seconds, member.idle_seconds = now, self._idle_seconds
                if member.trains:
                    self._absent[name] = None
                if member.is_known:
                    self._expected.add(member)
        return merged

    def forget(self, name: Hashable) -> None:
        """Wait no longer for a trainer that died or left; what it has contributed stays."""
        if (member := self._members.pop(name, None)) is not None:
            self._take_out(name, member)

    def _take_out(self, name: Hashable, member: Member) -> None:
        """Take a member out of all orders, before it changes."""
        if member.is_known:
            self._usual.remove(member)
            if name in self._absent:
                self._expected.remove(member)
        self._absent.pop(name, None)

    def _without_idle(self, now: float) -> float:
        """Return a time without those in which nobody came though all were expected."""
        if self._contributed or not len(self._usual):
            return now - self._idle_seconds
        due = self._closed_seconds + self._usual.median() + self._spread_seconds()
        self._idle_seconds += max(0.0, now - self._idle_seconds - due)
        return min(now - self._idle_seconds, due)

    def _spread_seconds(self) -> float:
        """Return the grace's length; 0 while no turnaround is known."""
        if not len(self._usual):
            return 0.0
        grace = self._terms(len(self._usual)).grace
        return grace * max(self._usual.median_apart(), LEAST_DEVIATION * self._usual.median())

    def _waited_until(self, spread: float, now: float) -> float:
        """Return the time until which one that is awaited may still come; 0 if none is likely to."""
        over = self._closed_seconds + self._usual.median() + spread
        # Who is expected earlier, or is given up, is not likely to come after the last one.
        last = self._expected.last_expected_seconds(over) + spread
        return min(over, last) if last > now else 0.0
