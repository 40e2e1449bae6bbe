"""A merge's window that looks at all trainers at each question, and the one that does not, decide alike."""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from statistics import median, median_low
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.sync_algos.contract import sorted_values
from shadowsync.sync_algos.contract.merge_window import (
    LATE_TURNAROUNDS,
    LEAST_DEVIATION,
    MergeTerms,
    MergeWindow,
)
from shadowsync.sync_algos.contract.training_members import Member


class PlainWindow:
    """`MergeWindow` as its docstring says it, by a look at all trainers."""

    def __init__(self, terms: Callable[[int], MergeTerms]) -> None:
        self._terms = terms
        self._members: dict[Hashable, Member] = {}
        self._merge: list[Hashable] = []
        self._opened = self._closed = self._idle = 0.0
        self._with_examples = 0

    def trainers(self, now: float) -> int:
        away, now = self._terms(len(self._members)).longest_wait_seconds, self._own(now)
        training = {
            name for name, one in self._members.items() if one.trains and not self._given_up(one, away, now)
        }
        return len(training.union(self._merge))

    def absent(self) -> list[Hashable]:
        return [name for name, one in self._members.items() if one.trains and name not in self._merge]

    def late_seconds(self, name: Hashable, now: float) -> float:
        one, known = self._members.get(name), self._known()
        if one is None or not one.trains or not known or one.answered_seconds == -math.inf:
            return 0.0
        usual = median_low(other.usual for other in known)
        return max(0.0, self._own(now) - one.answered_seconds - LATE_TURNAROUNDS * usual)

    def contributed(self, name: Hashable, examples: int, now: float) -> None:
        if name in self._merge:
            raise ValueError("a trainer contributes once to a merge")
        begins, now = name not in self._members, self._own(now)
        one = self._members.setdefault(name, Member())
        one.trains = begins or examples > 0 or one.seen == self._with_examples
        self._with_examples += examples > 0
        one.seen = self._with_examples
        if one.answered_seconds > -math.inf:
            one.took(now - one.answered_seconds + self._idle - one.idle_seconds)
        if not self._merge:
            self._opened = now
        self._merge.append(name)

    def closes_at(self, now: float) -> float:
        if not self._merge:
            return math.inf
        own = self._own(now)
        closes = self._closes_at(own)
        return now if closes <= own else closes + self._idle

    def _closes_at(self, now: float) -> float:
        spread = self._spread()
        awaited = [
            one
            for name, one in self._members.items()
            if name not in self._merge and one.is_known and not self._given_up(one, spread, now)
        ]
        terms = self._terms(len(self._merge) + len(awaited))
        latest = self._opened + terms.longest_wait_seconds
        if not awaited or now >= latest:
            return now
        if len(self._merge) < terms.quorum:
            return min(latest, *(one.expected_seconds + max(one.usual, spread) for one in awaited))
        over = self._closed + median(one.usual for one in self._known()) + spread
        expected = [one.expected_seconds for one in awaited]
        coming = [seconds for seconds in expected if seconds <= over and seconds + spread > now]
        return min(latest, max(now, min(over, max(coming) + spread))) if coming else now

    def close(self, now: float) -> tuple[Hashable, ...]:
        merged, now = tuple(sorted(self._merge, key=repr)), self._own(now)
        for name in merged:
            if name in self._members:
                self._members[name].answered_seconds = now
                self._members[name].idle_seconds = self._idle
        self._merge, self._closed = [], now
        return merged

    def forget(self, name: Hashable) -> None:
        self._members.pop(name, None)

    def _own(self, now: float) -> float:
        """A time of the window's clock, which stands still while nobody comes though all are expected."""
        if not self._merge and self._known():
            due = self._closed + median(one.usual for one in self._known()) + self._spread()
            self._idle += max(0.0, now - self._idle - due)
            return min(now - self._idle, due)
        return now - self._idle

    def _known(self) -> list[Member]:
        return [one for one in self._members.values() if one.is_known]

    def _given_up(self, one: Member, least: float, now: float) -> bool:
        return one.is_known and one.expected_seconds + max(one.usual, least) <= now

    def _spread(self) -> float:
        known = self._known()
        if not known:
            return 0.0
        apart = [abs(seconds - one.usual) for one in known for seconds in one.turnarounds]
        usual = median(one.usual for one in known)
        return self._terms(len(known)).grace * max(median(apart), LEAST_DEVIATION * usual)


Window = MergeWindow | PlainWindow
Happening = tuple[str, int, float, int]
"""What happens, to which trainer, after how many seconds, and the examples behind a contribution."""


def decisions(window: Window, happenings: list[Happening]) -> list[object]:
    """All that a window says, with the times at which it closes its merges by its own timer.

    Whoever is in the open merge already does not contribute, and whoever died comes back with another name.
    """
    now, said, lives, merging = 0.0, list[object](), Counter[int](), set[Hashable]()
    for what, trainer, wait, examples in [*happenings, ("nothing", 0, 100.0, 0)]:
        until = now + wait
        while (closes := window.closes_at(now)) <= until:
            now = max(now, closes)
            if window.closes_at(now) <= now:
                said += [now, window.trainers(now), sorted(window.absent(), key=repr), window.close(now)]
                merging.clear()
        now, name = until, (trainer, lives[trainer])
        if what == "dies":
            window.forget(name)
            lives[trainer] += 1
        elif what == "comes" and name not in merging:
            said.append(window.late_seconds(name, now))
            window.contributed(name, examples, now)
            merging.add(name)
        said.append(window.trainers(now))
    return said


def terms_of(quorum: int, grace: float, longest_wait_seconds: float = 1.0) -> Callable[[int], MergeTerms]:
    return lambda n: MergeTerms(min(n, quorum) if quorum else (n + 1) // 2, grace, longest_wait_seconds)


# Times of a grid fall on each other, and others do not.
WAITS = st.one_of(st.sampled_from([0.0, 0.0, 0.125, 0.25]), st.floats(0.0, 0.4), st.floats(0.0, 3.0))
KINDS = st.sampled_from(["comes"] * 12 + ["dies", "nothing"])
EXAMPLES = st.sampled_from([0, 64, 64, 64])
HAPPENINGS = st.lists(st.tuples(KINDS, st.integers(0, 6), WAITS, EXAMPLES), min_size=20, max_size=90)
TERMS = st.builds(
    terms_of, st.integers(0, 7), st.sampled_from([0.0, 1.0, 4.0, 40.0]), st.sampled_from([0.3, 1.0, 20.0])
)


@given(HAPPENINGS, TERMS)
def test_windows_decide_alike_whatever_happens(
    happenings: list[Happening], terms: Callable[[int], MergeTerms]
) -> None:
    with patch.object(sorted_values, "MOST_IN_A_BLOCK", 4):
        found = decisions(MergeWindow(terms), happenings)
    assert found == decisions(PlainWindow(terms), happenings)


def lives_of(trainers: int, seconds: float, seed: int) -> list[Happening]:
    """Contributions of trainers of which some are three times slower, and any stands still, idles or dies."""
    draw = random.Random(seed)
    moments: list[tuple[float, str, int, int]] = []
    for trainer in range(trainers):
        usual, now = draw.choice([0.1, 0.1, 0.1, 0.3]), draw.uniform(0.0, 0.5)
        while now < seconds:
            what, examples = draw.choices(["comes", "dies"], [40, 1])[0], draw.choice([0] + [64] * 9)
            moments.append((now, what, trainer, examples))
            now += usual * draw.uniform(0.9, 1.1)
            now += draw.uniform(0.0, 3.0) if draw.random() < 0.02 else 0.0
    moments.sort()
    before = [0.0, *(moment for moment, *_ in moments[:-1])]
    return [
        (what, trainer, moment - earlier, examples)
        for (moment, what, trainer, examples), earlier in zip(moments, before, strict=True)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "terms", [(0, 4.0, 1.0), (90, 40.0, 20.0), (5, 40.0, 0.05)], ids=["usual", "patient", "short"]
)
def test_windows_of_a_hundred_decide_alike(seed: int, terms: tuple[int, float, float]) -> None:
    happenings, plain = lives_of(100, 3.0, seed), PlainWindow(terms_of(*terms))
    found = decisions(MergeWindow(terms_of(*terms)), happenings)
    assert found == decisions(plain, happenings)
    sizes = [len(one) for one in found if isinstance(one, tuple)]
    assert len(sizes) > 5
    assert max(sizes) > 20
    others = terms_of(terms[0], terms[1] + 0.1, terms[2] + 0.01)
    assert found != decisions(MergeWindow(others), happenings), "the control: terms that differ a little"


@contextmanager
def counted_calls(counts: list[int]) -> Iterator[None]:
    """Count calls of functions, also of built-in ones."""

    def profile(frame: object, what: str, argument: object) -> None:
        del frame, argument
        counts[0] += what in {"call", "c_call"}

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def calls_of_a_contribution(window: Window, trainers: int) -> float:
    """The mean over a merge that is full, after two that were; with a question after each contribution."""
    counts = [0]
    for merge in range(3):
        for trainer in range(trainers):
            now = merge + trainer / trainers / 10.0
            if merge < 2:
                window.contributed(trainer, 64, now)
                continue
            with counted_calls(counts):
                window.late_seconds(trainer, now)
                window.contributed(trainer, 64, now)
                window.closes_at(now)
        window.close(merge + 0.2)
    return counts[0] / trainers


def test_a_contribution_does_not_look_at_all_trainers() -> None:
    few, many = (calls_of_a_contribution(MergeWindow(terms_of(0, 4.0)), n) for n in (30, 300))
    assert many < 1.5 * few
    plain_few, plain_many = (calls_of_a_contribution(PlainWindow(terms_of(0, 4.0)), n) for n in (30, 300))
    assert plain_many > 5 * plain_few, "the control"
