"""When a merge closes: quorum, grace, trainers that are late, slow, idle or dead."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from shadowsync.sync_algos.base import MergeTerms
from shadowsync.sync_algos.contract.merge_window import LATE_TURNAROUNDS, MergeWindow, merge_weights

PERIOD = 0.1
"""Seconds from a trainer's answer to its next contribution; each trainer takes 1 ms more than the last."""
LONGEST = 1.0

Turnaround = Callable[[int, float], float]
Merged = tuple[float, tuple[object, ...]]


def window(quorum: int | None = None, grace: float = 4.0) -> MergeWindow:
    """By default the quorum is half of the trainers, rounded up."""
    return MergeWindow(lambda n: MergeTerms((n + 1) // 2 if quorum is None else quorum, grace, LONGEST))


def alike(trainer: int, answered: float) -> float:
    del answered
    return PERIOD + 0.001 * trainer


def run(
    merges: MergeWindow,
    until: float,
    turnaround: Turnaround = alike,
    trainers: int = 4,
    examples: Callable[[int], int] = lambda _: 64,
) -> list[Merged]:
    """Let trainers contribute, each a turnaround after its answer; return merges with their times."""
    coming = [(turnaround(trainer, 0.0), trainer) for trainer in range(trainers)]
    heapq.heapify(coming)
    closed: list[Merged] = []
    now = 0.0
    while now < until:
        closes = merges.closes_at(now)
        if coming and coming[0][0] < closes:
            now, trainer = heapq.heappop(coming)
            merges.contributed(trainer, examples(trainer), now)
            continue
        now = max(now, closes)
        if merges.closes_at(now) <= now:
            closed.append((now, merges.close(now)))
            for name in closed[-1][1]:
                assert isinstance(name, int)
                heapq.heappush(coming, (now + turnaround(name, now), name))
    return closed


def standing_still(who: int, since: float, until: float) -> Turnaround:
    """What this trainer would contribute in that time comes at its end."""

    def turnaround(trainer: int, answered: float) -> float:
        comes = answered + alike(trainer, answered)
        return (until if trainer == who and since < comes < until else comes) - answered

    return turnaround


def test_nothing_is_open_at_first() -> None:
    first = window()
    assert not first.is_open
    assert first.closes_at(5.0) == math.inf
    assert first.trainers(5.0) == 0


def test_a_lone_trainer_is_merged_at_once() -> None:
    merges = run(window(), 3.5 * PERIOD, trainers=1)
    assert [who for _, who in merges] == [(0,)] * 3
    assert [time for time, _ in merges] == pytest.approx([PERIOD, 2 * PERIOD, 3 * PERIOD])


def test_trainers_that_come_alike_are_merged_together() -> None:
    merges = [merge for merge in run(window(), 3.0) if merge[0] > 5 * PERIOD]
    assert all(set(who) == {0, 1, 2, 3} for _, who in merges)
    spans = [after - before for (before, _), (after, _) in pairwise(merges)]
    assert spans == pytest.approx([alike(3, 0.0)] * len(spans)), "with the last one, and not later"


def test_one_that_stands_still_is_waited_for_once() -> None:
    merges = run(window(), 7.0, standing_still(3, 2.0, 6.0))
    quiet = [(time, set(who)) for time, who in merges if 2.0 < time < 5.9]
    assert [who for _, who in quiet[1:]] == [{0, 1, 2}] * (len(quiet) - 1)
    spans = [after - before for (before, _), (after, _) in pairwise(quiet)]
    assert max(spans) < 1.3 * PERIOD, "until the grace is over"
    assert spans[1:] == pytest.approx([alike(2, 0.0)] * (len(spans) - 1)), "then with the last of the others"


def test_it_is_merged_as_soon_as_it_comes_again() -> None:
    merges = run(window(), 9.0, standing_still(3, 2.0, 6.0))
    first = next(time for time, who in merges if time >= 6.0 and 3 in who)
    assert first < 6.0 + 1.3 * PERIOD
    assert [set(who) for time, who in merges if time > first + 5 * PERIOD] == [{0, 1, 2, 3}] * sum(
        time > first + 5 * PERIOD for time, _ in merges
    )


def test_a_slow_one_joins_the_merges_that_it_can_reach() -> None:
    """It needs 2.6 times as long: the others have at least 0.9 of their merges, and it is in every third."""

    def one_slow(trainer: int, answered: float) -> float:
        return alike(trainer, answered) * (2.6 if trainer == 3 else 1.0)

    alone = run(window(), 20.0, trainers=3)
    merges = run(window(), 20.0, one_slow)
    of_others = [who for _, who in merges if {0, 1, 2} <= set(who)]
    assert len(of_others) > 0.9 * len(alone)
    of_slow = [who for _, who in merges if 3 in who]
    assert len(of_slow) > 0.3 * len(of_others)
    assert all(set(who) == {0, 1, 2, 3} for who in of_slow[3:]), "it has no merges of its own"


def test_without_grace_only_the_quorum_is_waited_for() -> None:
    """The control of the grace: one of four comes 10 ms after the others, and is in no merge with them."""

    def one_later(trainer: int, answered: float) -> float:
        return alike(trainer, answered) + (0.01 if trainer == 3 else 0.0)

    together = [who for _, who in run(window(), 9.0, one_later)[6:]]
    apart = [who for _, who in run(window(3, grace=0.0), 9.0, one_later)[6:]]
    assert all(set(who) == {0, 1, 2, 3} for who in together)
    assert not any(set(who) == {0, 1, 2, 3} for who in apart)


def test_a_quorum_that_does_not_come_is_waited_for_until_they_are_given_up() -> None:
    """Two of four stand still for good: the merges of the others wait for half of a second at most, once."""

    def two_dead_still(trainer: int, answered: float) -> float:
        return alike(trainer, answered) if trainer < 2 or answered < 3.0 else 1e9

    merges_of_four = window(3)
    merges = run(merges_of_four, 9.0, two_dead_still)
    times = [time for time, who in merges if set(who) == {0, 1}]
    spans = [after - before for before, after in pairwise(times)]
    assert max(spans) < 2.5 * PERIOD
    assert merges_of_four.trainers(9.0) == 2
    assert spans[1:] == pytest.approx([alike(1, 0.0)] * (len(spans) - 1))


def test_a_grace_longer_than_a_turnaround_is_waited_for_if_the_quorum_does_not_come() -> None:
    """Of three with a turnaround of 0.1 s two do not come: each is given up 40 / 20 of that later."""
    for grace, given_up in ((40.0, 0.2), (4.0, PERIOD)):
        merges = window(3, grace)
        for start in (0.0, PERIOD, 2 * PERIOD):
            for trainer in range(3):
                merges.contributed(trainer, 64, start)
            merges.close(start)
        merges.contributed(0, 64, 3 * PERIOD)
        now = 3 * PERIOD
        while (asked_again := merges.closes_at(now)) > now:
            now = asked_again
        assert now == pytest.approx(3 * PERIOD + given_up)


def test_nobody_waits_longer_than_allowed() -> None:
    """Of three with a turnaround of 5 s one comes early: the others are expected, and not in time."""
    merges = window(3)
    for start in (0.0, 5.0, 10.0):
        for trainer in range(3):
            merges.contributed(trainer, 64, start)
        merges.close(start)
    merges.contributed(0, 64, 11.0)
    assert merges.closes_at(11.0) == 11.0 + LONGEST
    assert merges.closes_at(11.0 + LONGEST) == 11.0 + LONGEST


def test_one_without_examples_does_not_count_for_the_quorum() -> None:
    """Its input has ended, and it only takes what the others have, once a second."""

    def three_idle(trainer: int, answered: float) -> float:
        return alike(trainer, answered) if trainer == 0 else 1.0

    merges = window()
    closed = run(merges, 9.0, three_idle, examples=lambda trainer: 0 if trainer else 64)
    assert merges.trainers(9.0) <= 2
    assert sum(0 in who for _, who in closed) > 0.9 * 9.0 / PERIOD


def test_a_dead_one_is_not_waited_for_and_its_contribution_stays() -> None:
    merges = window()
    last, _ = run(merges, 2.0, trainers=2)[-1]
    merges.close(last)
    merges.contributed(0, 64, last + PERIOD)
    assert merges.closes_at(last + PERIOD) > last + PERIOD
    merges.forget(1)
    assert merges.closes_at(last + PERIOD) == last + PERIOD
    merges.forget(0)
    assert merges.trainers(last + PERIOD) == 1
    assert merges.close(last + PERIOD) == (0,)
    assert merges.closes_at(last + 1.0) == math.inf


def test_a_second_contribution_to_a_merge_is_refused() -> None:
    merges = window()
    merges.contributed(0, 64, 1.0)
    with pytest.raises(ValueError, match="once to a merge"):
        merges.contributed(0, 64, 1.1)


def lateness(turnaround: Turnaround, trainers: int = 4) -> dict[int, float]:
    """By how many seconds each trainer was late, in all, over twelve seconds."""
    merges = window()
    late, contributed = dict.fromkeys(range(trainers), 0.0), merges.contributed

    def counting(name: int, examples: int, now: float) -> None:
        late[name] += merges.late_seconds(name, now)
        contributed(name, examples, now)

    merges.contributed = counting  # type: ignore[method-assign, assignment]
    run(merges, 12.0, turnaround, trainers)
    return late


def test_trainers_that_are_alike_are_never_late() -> None:
    assert set(lateness(alike).values()) == {0.0}


@pytest.mark.parametrize("still", [1.0, 5.0])
def test_one_that_stands_still_is_late_by_so_long(still: float) -> None:
    late = lateness(standing_still(2, 5.0, 5.0 + still))
    assert late.pop(2) == pytest.approx(still - PERIOD, abs=PERIOD)
    assert set(late.values()) == {0.0}


@pytest.mark.parametrize("trainers", [2, 3, 4])
@pytest.mark.parametrize(("times", "share"), [(1.5, 0.0), (3.0, 1 / 3), (10.0, 0.8)])
def test_a_slow_one_is_late_for_what_it_takes_beyond_twice_the_usual(
    trainers: int, times: float, share: float
) -> None:
    """Of two, usual is what the faster one takes, not the mean of both."""
    late = lateness(lambda trainer, _: PERIOD * (times if trainer == 1 else 1.0), trainers)
    # Before its first answer, and of what has not come at the end, nothing is known.
    assert share - 0.15 <= late.pop(1) / 12.0 <= share
    assert set(late.values()) == {0.0}


def test_of_one_that_was_never_answered_it_is_not_known() -> None:
    merges = window()
    merges.contributed("a", 64, 1.0)
    assert merges.late_seconds("a", 100.0) == merges.late_seconds("b", 100.0) == 0.0


def test_those_that_train_and_are_not_in_the_open_merge_are_absent() -> None:
    merges = window()
    for second in range(2):
        for trainer in range(4):
            merges.contributed(trainer, 0 if trainer == 3 else 64, float(second))
        merges.close(float(second))
    merges.contributed(0, 64, 2.0)
    assert set(merges.absent()) == {1, 2}
    merges.forget(1)
    assert merges.absent() == [2]


def test_a_trainer_whose_first_round_had_nothing_behind_it_takes_part() -> None:
    """Where links are slow, each of the first merges holds one: it may not count as the work of all."""
    merges = window()
    for name in range(4):
        merges.contributed(name, 0, 0.0)
        merges.close(0.0)
    merges.contributed(0, 100, 1.0)
    assert merges.trainers(1.0) == 4
    merges.close(1.0)
    merges.contributed(1, 0, 2.0)
    merges.close(2.0)
    merges.contributed(0, 100, 3.0)
    assert merges.trainers(3.0) == 3, "the control: its second had nothing, either"


def alike_rounds(merges: MergeWindow, times: Sequence[float], examples: int = 64) -> None:
    """Four trainers in each merge, which come at once."""
    for time in times:
        for trainer in range(4):
            merges.contributed(trainer, examples, time)
        assert merges.closes_at(time) == time
        merges.close(time)


@pytest.mark.parametrize(("still", "known"), [(3.0, True), (30.0, True), (30.0, False)])
def test_while_all_stand_still_nobody_is_late_or_away(still: float, known: bool) -> None:
    """As while a job validates: the first to come again is not merged as if the others were gone."""
    merges = window()
    alike_rounds(merges, [PERIOD * number for number in range(1, 6)] if known else [PERIOD])
    again = PERIOD * (5 if known else 1) + still
    merges.contributed(0, 64, again)
    assert merges.trainers(again) == 4
    assert merges.closes_at(again) > again or not known, "the others are expected"
    for trainer in (1, 2, 3):
        assert merges.late_seconds(trainer, again + 0.01) == 0.0
        merges.contributed(trainer, 64, again + 0.01)
    assert merges.closes_at(again + 0.01) == again + 0.01
    assert len(merges.close(again + 0.01)) == 4
    after = again + 0.01 + PERIOD
    alike_rounds(merges, [after])
    # The control: of those that do not come while others do, each is late by what it takes.
    merges.contributed(0, 64, after + PERIOD)
    if known:
        assert merges.late_seconds(1, after + 3.0) == pytest.approx(3.0 - LATE_TURNAROUNDS * PERIOD, abs=0.1)


def test_rounds_in_which_nobody_trains_leave_all_in_the_count() -> None:
    """While a job waits for its input: whoever trains first again is no more than one of four."""
    merges = window()
    alike_rounds(merges, [PERIOD * number for number in range(1, 6)])
    alike_rounds(merges, [PERIOD * number for number in range(6, 9)], examples=0)
    merges.contributed(0, 64, 9 * PERIOD)
    assert merges.trainers(9 * PERIOD) == 4
    merges.close(9 * PERIOD)
    merges.contributed(0, 64, 10 * PERIOD)
    merges.contributed(1, 0, 10 * PERIOD)
    merges.close(10 * PERIOD)
    assert merges.trainers(10 * PERIOD) == 3, "the control: others trained meanwhile, and this one did not"


def test_what_codecs_had_lost_weighs_as_much_as_a_usual_contribution() -> None:
    moving = [True, False, True, True]
    assert merge_weights([30, 0, 0, 50], moving.__getitem__) == (30, 0, 40, 50)
    assert merge_weights([0, 0, 0, 0], moving.__getitem__) == (1, 0, 1, 1)
    assert merge_weights([0, 0], [False, False].__getitem__) == (0, 0)
