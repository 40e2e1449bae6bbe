"""When rounds are due, by iterations and by cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shadowsync.nodes.shadow.schedule import (
    CLOCK_SECONDS,
    LONGEST_LOOK_SECONDS,
    RETRY_SECONDS,
    SHORTEST_LOOK_SECONDS,
    STALLED_SECONDS,
    USUAL_ROUNDS,
    RoundSchedule,
)
from shadowsync.pipeline.config.sections import SyncSection

DUTY = 0.01


@dataclass(frozen=True)
class Ended:
    """A round as it went."""

    complete: bool = True
    seconds: float = 0.002
    cpu_seconds: float = 0.001
    moved_bytes: int = 0


def schedule(**settings: Any) -> RoundSchedule:
    return RoundSchedule(SyncSection(**{"duty": DUTY, **settings}))


def play(own: RoundSchedule, now: float, iterations: int, ended: Ended) -> None:
    own.began(now, iterations)
    own.ended(
        complete=ended.complete,
        seconds=ended.seconds,
        cpu_seconds=ended.cpu_seconds,
        moved_bytes=ended.moved_bytes,
    )


def by_cost_alone(began: float, ended: Ended, link: float | None) -> float:
    """The rule without a gap: the seconds of pause after the round, as a time."""
    cost = ended.cpu_seconds if link is None else max(ended.cpu_seconds, ended.moved_bytes / link)
    pause = max(cost / DUTY, ended.seconds) - ended.seconds
    return began + ended.seconds + (pause if ended.complete else max(pause, RETRY_SECONDS))


seconds = st.floats(0.0, 10.0)
rounds = st.builds(Ended, st.booleans(), seconds, seconds, st.integers(0, 1 << 30))


# Each round has new iterations to send; without any, a trainer takes part once a second.
@given(st.lists(st.tuples(rounds, seconds, st.integers(1, 50)), max_size=20), st.none() | st.just(1e6))
def test_without_a_gap_only_the_last_round_counts(
    history: list[tuple[Ended, float, int]], link: float | None
) -> None:
    own = schedule(link_bytes_per_second=link)
    now, iterations = 0.0, 0
    assert own.is_due(now, iterations)
    for ended, later, trained in history:
        play(own, now, iterations, ended)
        due = by_cost_alone(now, ended, link)
        assert own.earliest_seconds == due
        assert own.due_iterations == 0
        iterations += trained
        assert own.is_due(due, iterations)
        before = due - 2 * CLOCK_SECONDS
        assert not own.is_due(before, iterations, awaited=True)
        assert own.wait_seconds(before, iterations) > 0
        now = due + later


def test_with_a_gap_a_round_is_due_so_many_iterations_after_the_last_began() -> None:
    own = schedule(gap=10)
    assert own.is_due(0.0, 0)
    play(own, 0.0, 7, Ended())
    assert own.due_iterations == 17
    assert not own.is_due(0.5, 16)
    assert own.is_due(0.5, 17)
    assert schedule().is_due(0.5, 0), "the control: without a gap no iteration is needed"


def test_the_duty_cycle_is_the_bound_of_the_gap() -> None:
    own = schedule(gap=1)
    play(own, 0.0, 0, Ended())
    play(own, 1.0, 1, Ended(cpu_seconds=0.003))
    assert own.earliest_seconds == 1.0 + 0.001 / DUTY
    assert not own.is_due(1.05, 1000)
    assert own.is_due(1.1, 1000)


def test_another_trainer_does_not_wait_for_iterations_but_for_the_duty_cycle() -> None:
    own = schedule(gap=100)
    for began in (0.0, 1.0):
        play(own, began, 0, Ended())
    assert not own.is_due(1.05, 0, awaited=True)
    assert own.is_due(1.1, 0, awaited=True)
    assert not own.is_due(1.1, 0)


def test_a_trainer_that_has_nothing_to_train_still_takes_part() -> None:
    own = schedule(gap=100)
    play(own, 0.0, 0, Ended())
    assert not own.is_due(1.0, 3)
    assert not own.is_due(1.0 + STALLED_SECONDS / 2, 3)
    assert own.is_due(1.0 + STALLED_SECONDS, 3)
    assert not own.is_due(1.0 + STALLED_SECONDS, 4), "it trains again"


@pytest.mark.parametrize("gap", [None, 100])
def test_a_trainer_with_nothing_new_to_send_takes_part_once_a_second(gap: int | None) -> None:
    own = schedule(gap=gap)
    play(own, 0.0, 3, Ended())
    # So much later that neither cost nor gap forbids it.
    late = 100.0
    own.wait_seconds(0.5, 3)  # Looks at the iterations.
    assert own.is_due(late, 3)
    play(own, late, 3, Ended())
    within = late + STALLED_SECONDS * 0.99
    assert own.earliest_seconds < within
    assert not own.is_due(within, 3)
    assert own.is_due(within, 3, awaited=True), "another one waits for it"
    assert own.is_due(late + STALLED_SECONDS, 3)
    # Nor is an incomplete round tried again sooner.
    play(own, late + STALLED_SECONDS, 3, Ended(complete=False))
    assert own.earliest_seconds < late + STALLED_SECONDS * 1.99
    assert not own.is_due(late + STALLED_SECONDS * 1.99, 3)
    assert own.is_due(late + STALLED_SECONDS * 2, 3)


def test_an_incomplete_round_is_tried_again_without_another_gap() -> None:
    own = schedule(gap=10)
    play(own, 0.0, 0, Ended())
    play(own, 1.0, 10, Ended(complete=False, cpu_seconds=0.0))
    assert own.earliest_seconds == pytest.approx(1.002 + RETRY_SECONDS)
    assert own.is_due(1.1, 10)


@pytest.mark.parametrize("expensive", range(10))
def test_one_expensive_round_of_ten_does_not_delay_the_next(expensive: int) -> None:
    costs = [0.001] * 10
    costs[expensive] = 0.05
    own, control = schedule(gap=1), schedule()
    longest = {}
    for name, which in (("gap", own), ("control", control)):
        now, pauses = 0.0, []
        for iterations, cost in enumerate(costs):
            play(which, now, iterations, Ended(cpu_seconds=cost))
            pauses.append(which.earliest_seconds - now)
            now = which.earliest_seconds
        longest[name] = max(pauses)
    assert longest["gap"] == pytest.approx(0.001 / DUTY)
    assert longest["control"] == pytest.approx(0.05 / DUTY)


@given(st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=30))
def test_a_pause_is_that_of_a_usual_round_or_of_this_one(costs: list[float]) -> None:
    own = schedule(gap=1)
    for at, cost in enumerate(costs):
        play(own, 0.0, 0, Ended(cpu_seconds=cost, seconds=0.0))
        usual = median_low(costs[max(0, at + 1 - USUAL_ROUNDS) : at + 1])
        counted = min(cost, usual) if at else 0.0
        assert own.earliest_seconds == pytest.approx(counted / DUTY)


def test_rounds_that_stay_expensive_count_in_full() -> None:
    own = schedule(gap=1)
    for cost in [0.001] * 10 + [0.05] * 3:
        play(own, 0.0, 0, Ended(cpu_seconds=cost))
    assert own.earliest_seconds == pytest.approx(0.05 / DUTY)


def test_attempts_before_the_first_complete_round_are_not_free() -> None:
    own = schedule(gap=1)
    play(own, 0.0, 0, Ended(complete=False, cpu_seconds=0.05))
    assert own.earliest_seconds == pytest.approx(0.05 / DUTY)


def test_at_the_start_the_gap_grows_from_one() -> None:
    own = schedule(gap=11, start_iterations=100)
    gaps = {}
    for began in (0, 9, 10, 55, 99, 100, 1000):
        play(own, 0.0, began, Ended())
        gaps[began] = own.due_iterations - began
    assert gaps == {0: 1, 9: 1, 10: 2, 55: 6, 99: 10, 100: 11, 1000: 11}


def test_the_start_may_have_a_duty_of_its_own() -> None:
    own = schedule(gap=1, start_iterations=100, start_duty=0.5)
    pauses = {}
    for began in (0, 99, 100):
        play(own, 0.0, began, Ended())
        pauses[began] = own.earliest_seconds
    assert pauses == {0: 0.002, 99: 0.002, 100: 0.001 / DUTY}


@given(st.integers(1, 1000), st.integers(0, 1000), st.integers(0, 2000))
def test_the_gap_is_never_larger_than_given_nor_none(gap: int, first: int, iterations: int) -> None:
    own = schedule(gap=gap, start_iterations=first)
    play(own, 0.0, iterations, Ended())
    target = own.due_iterations - iterations
    assert 1 <= target <= gap
    play(own, 0.0, iterations + 1, Ended())
    assert own.due_iterations - iterations - 1 >= target


@given(st.integers(1, 1000), st.floats(1e-3, 1.0))
def test_looks_are_bounded_and_end_close_behind_the_iteration(gap: int, step_seconds: float) -> None:
    own = schedule(gap=gap)
    play(own, 0.0, 0, Ended())
    now, looks = 0.0, 0
    while (wait := own.wait_seconds(now, int(now / step_seconds))) > 0:
        if now >= own.earliest_seconds:
            assert SHORTEST_LOOK_SECONDS <= wait <= LONGEST_LOOK_SECONDS
        now, looks = now + wait, looks + 1
    assert now < gap * step_seconds + max(SHORTEST_LOOK_SECONDS, step_seconds)
    assert looks <= 2 + now / SHORTEST_LOOK_SECONDS


def looks(wait: Callable[[float, int], float], seconds: float, done: Callable[[float], int]) -> int:
    """Return how often a thread looks in so many seconds, after the first round."""
    now, count = 0.0, 0
    while now < seconds and (pause := wait(now, done(now))) > 0:
        now, count = now + pause, count + 1
    assert now >= seconds, "no round was due"
    return count


@pytest.mark.parametrize("step_seconds", [0.0013, 0.0178, 0.0235])
def test_a_gap_that_is_never_reached_costs_few_looks(step_seconds: float) -> None:
    own, before = schedule(gap=1_000_000_000), schedule(gap=1_000_000_000)
    for one in (own, before):
        play(one, 0.0, 0, Ended(cpu_seconds=0.0))

    def by_rounds_alone(now: float, iterations: int) -> float:
        """The rule that learns from rounds only, of which there is one."""
        return min(SHORTEST_LOOK_SECONDS, before.wait_seconds(now, iterations))

    done = lambda now: int(now / step_seconds)  # noqa: E731
    found, control = (looks(wait, 10.0, done) for wait in (own.wait_seconds, by_rounds_alone))
    assert found <= 10.0 / LONGEST_LOOK_SECONDS + 2 * step_seconds / SHORTEST_LOOK_SECONDS + 2
    assert control > 9 * found


# By the pace since the round began alone, this one would be 0.04 s late.
@example(12, 1e-3, 0.9)
@given(st.integers(2, 500), st.floats(1e-3, 0.1), st.floats(0.0, 0.9))
def test_iterations_that_become_fast_while_it_waits_are_noticed(
    gap: int, step_seconds: float, slow_seconds: float
) -> None:
    own = schedule(gap=gap)
    play(own, 0.0, 0, Ended(cpu_seconds=0.0))
    due = slow_seconds + (gap - 1) * step_seconds

    def done(now: float) -> int:
        return 0 if now < slow_seconds else 1 + int((now - slow_seconds) / step_seconds)

    now = 0.0
    while (wait := own.wait_seconds(now, done(now))) > 0:
        now += wait
    # The look that sees the first one takes it for half of the time since the look before.
    next_look = SHORTEST_LOOK_SECONDS + min((gap - 1) * SHORTEST_LOOK_SECONDS / 4, LONGEST_LOOK_SECONDS)
    latest = max(due, slow_seconds + next_look) + SHORTEST_LOOK_SECONDS + step_seconds
    assert due - CLOCK_SECONDS <= now <= latest
