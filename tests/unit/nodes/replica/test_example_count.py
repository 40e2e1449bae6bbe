"""What a trainer takes all trainers to have trained, between what the coordinator tells it."""

from __future__ import annotations

import pytest
from shadowsync.nodes.replica.replica import ExampleCount


def test_a_trainer_that_is_alone_counts_by_itself() -> None:
    count = ExampleCount(alone=True)
    count.update(999, 0)
    assert [count.now(own) for own in (0, 128, 256)] == [0, 128, 256]


def test_a_run_that_is_resumed_goes_on_counting() -> None:
    count = ExampleCount(alone=True)
    count.start(5000)
    assert count.now(128) == 5128


def test_between_heartbeats_the_others_go_on_as_they_did() -> None:
    count = ExampleCount(alone=False)
    count.update(3000, 1000)
    assert count.now(1000) == 3000
    # Two others, as fast as this one.
    assert count.now(1100) == 1100 + 2000 + 200
    count.update(6000, 2000)
    assert count.now(2500) == 2500 + 4000 + 1000


def test_a_trainer_that_stops_leaves_the_count_to_those_that_train() -> None:
    count = ExampleCount(alone=False)
    count.update(2000, 1000)
    count.update(3000, 2000)
    assert count.now(2100) == 2100 + 1000, "the other has stopped"
    count.update(9000, 2000)
    assert count.now(2000) == 9000, "this one has stopped"


@pytest.mark.parametrize("trainers", [2, 5])
def test_the_count_is_near_the_truth(trainers: int) -> None:
    """All train alike, heartbeats come now and then; the control only counts its own."""
    count = ExampleCount(alone=False)
    errors, blind = [], []
    for step in range(1, 200):
        own = 128 * step
        truth = own * trainers
        if step % 20 == 0:
            count.update(truth, own)
        elif step > 20:
            errors.append(abs(count.now(own) - truth) / truth)
            blind.append(abs(own - truth) / truth)
    assert max(errors) < 0.01
    assert min(blind) > 0.4


def test_it_never_goes_back() -> None:
    count = ExampleCount(alone=False)
    count.update(5000, 1000)
    count.update(4000, 1500)
    assert count.now(1500) >= 5000
