"""Which pushes of a trainer a node has applied, in as few numbers as an answer carries."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.embedding.in_flight.applied_pushes import (
    MOST_NUMBERS,
    AppliedPushes,
    parse_applied,
)
from shadowsync.pipeline.wire.field_checks import MAX_ITEMS


def contained(applied: Sequence[int], worker: int, most: int) -> set[int]:
    through, later = parse_applied(applied).get(worker, (0, frozenset()))
    return {number for number in range(1, most + 1) if number <= through or number in later}


@given(st.integers(1, 4), st.integers(1, 30), st.randoms(use_true_random=False))
def test_pushes_in_any_order_are_known_and_no_others(workers: int, count: int, draw: random.Random) -> None:
    """Some come twice; each names the first that its worker has no answer to."""
    pushes, state = AppliedPushes(), {worker: set[int]() for worker in range(workers)}
    sent = [(worker, number) for worker in range(workers) for number in range(1, count + 1)] * 2
    draw.shuffle(sent)
    for worker, number in sent[: len(sent) * 2 // 3]:
        answered = 1
        while answered in state[worker]:
            answered += 1
        pushes.add("a", worker, number, draw.randint(1, min(answered, number)))
        state[worker].add(number)
        applied = pushes.of_trainer("a")
        for known, numbers in state.items():
            assert contained(applied, known, count) == numbers
    assert pushes.of_trainer("b") == ()


def test_a_new_node_takes_the_trainers_word_for_what_came_before() -> None:
    pushes = AppliedPushes()
    pushes.add("a", 1, 9, 7)
    assert parse_applied(pushes.of_trainer("a")) == {1: (6, frozenset({9}))}
    pushes.add("a", 1, 7, 7)
    assert pushes.of_trainer("a") == (1, 7, 1, 9)
    pushes.add("a", 1, 8, 7)
    assert pushes.of_trainer("a") == (1, 9, 0)
    pushes.drop("a")
    assert pushes.of_trainer("a") == ()


def test_a_trainer_that_leaves_gaps_takes_no_more_than_an_answer_holds() -> None:
    assert MOST_NUMBERS == MAX_ITEMS
    pushes = AppliedPushes()

    def fill(trainer: str, worker_step: int, number_step: int) -> int:
        for count in range(1, 2 * MOST_NUMBERS):
            pushes.require_room(trainer)
            pushes.add(trainer, worker_step * count, 1 + number_step * count, 1)
        return count

    with pytest.raises(ValueError, match="the pushes of 1 workers have gaps"):
        fill("a", 0, 2)
    assert MOST_NUMBERS - 4 <= len(pushes.of_trainer("a")) <= MOST_NUMBERS
    # Neither do many workers; other trainers are not affected.
    with pytest.raises(ValueError, match="an answer cannot list them"):
        fill("b", 1, 0)
    assert MOST_NUMBERS - 6 <= len(pushes.of_trainer("b")) <= MOST_NUMBERS


@pytest.mark.parametrize(
    "applied", [(1,), (1, 2), (1, 2, 1), (1, 2, 1, 3, 4), (1, 2, 4096), (0, 0, 0, 1, 5, 2, 7)]
)
def test_numbers_that_do_not_fit_together_are_refused(applied: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="numbers of applied pushes do not fit together"):
        parse_applied(applied)
    assert parse_applied((0, 0, 0, 1, 5, 1, 7)) == {0: (0, frozenset()), 1: (5, frozenset({7}))}
