"""Loops of torch that synchronize: `shadowsync.attach` with a hub in the test's own process."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
import shadowsync
import torch
from shadowsync.nodes.control.membership import Member
from shadowsync.nodes.control.server import ControlServer
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.loops.attached_loops import (
    END_SECONDS,
    Task,
    hub,
    in_threads,
    loss_of,
    sgd,
    small_loop,
    small_model,
    train_until,
    weights_of,
)
from torch import nn


def distance(replicas: list[torch.Tensor]) -> float:
    """Mean distance from the mean, relative to the mean."""
    stacked = torch.stack(replicas)
    mean = stacked.mean(dim=0)
    return float((stacked - mean).norm(dim=1).mean() / mean.norm())


@pytest.mark.parametrize(
    ("algorithm", "count"),
    [("easgd", 2), ("easgd", 4), ("ma", 2), ("bmuf", 2), ("decoupled", 2), ("none", 2)],
)
def test_the_loss_falls_and_replicas_stay_together(algorithm: str, count: int) -> None:
    """The control: loops without synchronization end far apart, since they begin so."""
    synchronizes = algorithm != "none"
    untrained, done = loss_of(small_model()), set[int]()
    models = [small_model(seed=1 + at) for at in range(count)]

    def loop(model: nn.Module, index: int, address: str) -> tuple[torch.Tensor, dict[str, float]]:
        task, optimizer, rounds = Task(index), sgd(model), 12.0 if synchronizes else 0.0

        def all_are_done(found: dict[str, float]) -> bool:
            if found["rounds"] >= rounds and found["steps"] >= 150 and loss_of(model) < untrained / 3:
                done.add(index)
            # Who left before the others would be farther from them.
            return len(done) == count

        with shadowsync.attach(model, optimizer, join=address, wait_for=count) as sync:
            train_until(sync, lambda: task.step(model, optimizer), all_are_done)
            counts = sync.metrics()
        return weights_of(model), counts

    with hub(sync__algorithm=algorithm) as own:
        found = in_threads(*(partial(loop, model, at, own.endpoint) for at, model in enumerate(models)))
    # In 25 runs at most 0.02, and 0.59 without synchronization.
    assert (distance([weights for weights, _ in found]) < 0.3) == synchronizes
    assert own.book is not None
    assert [one.state for one in own.book.loops] == ["left"] * count
    for one, (_, counts) in zip(own.book.loops, found, strict=True):
        assert one.steps >= 150
        if synchronizes:
            # The closing round carries all that was trained.
            assert one.synchronized == one.steps
            assert counts["sent_bytes"] > 0
            assert counts["sync_gap_mean"] > 0


def test_rounds_with_a_center_have_the_closed_form() -> None:
    """A loop at a fixed rate, and a twin that computes EASGD: d = a (w - c), c += d, w -= (1 - a) d."""
    rate, every, steps = 0.25, 2, 6
    model, twin = small_model(), small_model()
    optimizer, other = sgd(model), sgd(twin)
    task, same = Task(0), Task(0)
    center = weights_of(twin)
    settings: dict[str, Any] = {"sync__mode": "fixed", "sync__every": every}
    settings["sync__options"] = {"elastic_rate": rate}
    apart = []
    with (
        hub(**settings) as own,
        shadowsync.attach(model, optimizer, join=own.endpoint, mode="fixed", every=every) as sync,
    ):
        for step in range(1, steps + 1):
            task.step(model, optimizer)
            same.step(twin, other)
            if step % every == 0:
                # Without the round they differ, the control.
                apart.append(float((weights_of(model) - weights_of(twin)).abs().max()))
                delta = rate * (weights_of(twin) - center)
                center += delta
                moved = weights_of(twin) - (1 - rate) * delta
                torch.nn.utils.vector_to_parameters(moved, twin.parameters())
            assert torch.allclose(weights_of(model), weights_of(twin), atol=1e-6)
        assert sync.metrics()["rounds"] == steps // every
        assert torch.allclose(weights_of(sync.model("center")), center, atol=1e-6)
    assert min(apart) > 1e-4


def test_fixed_rate_rounds_of_two_loops_make_them_equal() -> None:
    every, rounds = 2, 3
    both = threading.Barrier(2)

    def loop(address: str, index: int) -> list[torch.Tensor]:
        model, optimizer, step = small_loop(index)
        own = []
        with shadowsync.attach(model, optimizer, join=address, wait_for=2) as sync:
            assert sync.metrics()["members"] == 2
            # Rounds do not wait for a loop that has not begun.
            both.wait(60)
            for _ in range(every * rounds):
                step()
                own.append(weights_of(model))
        return own

    settings: dict[str, Any] = {"sync__mode": "fixed", "sync__every": every, "sync__algorithm": "ma"}
    settings["sync__options"] = {"elastic_rate": 1.0}
    with hub(**settings) as own:
        first, second = in_threads(*(partial(loop, own.endpoint, at) for at in range(2)))
    apart = [float((one - other).abs().max()) for one, other in zip(first, second, strict=True)]
    assert max(apart[every - 1 :: every]) < 1e-6
    # The control: between rounds they differ.
    assert min(apart[::every]) > 1e-4


def test_a_loop_that_joins_late_takes_the_weights_of_the_others() -> None:
    with hub(sync__algorithm="easgd") as own:
        model, optimizer, step = small_loop()
        with shadowsync.attach(model, optimizer, join=own.endpoint) as sync:
            train_until(sync, step, lambda found: found["steps"] >= 300)
            train_until(sync, step, lambda found: found["rounds"] >= 20)
            mine = weights_of(model)
            late, other = small_model(seed=5), small_model(seed=5)
            with shadowsync.attach(late, sgd(late), join=own.endpoint):
                joined = weights_of(late)
            # With weights of its own, the control.
            with shadowsync.attach(other, sgd(other), join=own.endpoint, start="mine"):
                kept = weights_of(other)
    assert (joined - mine).norm() < (kept - mine).norm() / 4


@pytest.mark.parametrize("algorithm", ["ma", "bmuf"])
def test_a_late_loop_without_a_center_gets_a_peers_weights(algorithm: str) -> None:
    with hub(sync__algorithm=algorithm) as own:
        model, optimizer, step = small_loop()
        with shadowsync.attach(model, optimizer, join=own.endpoint) as sync:
            train_until(sync, step, lambda found: found["steps"] >= 200)
            joined = threading.Event()
            late = small_model(seed=5)
            start = weights_of(late)

            def second() -> tuple[torch.Tensor, torch.Tensor]:
                stepped = sgd(late)
                with shadowsync.attach(late, stepped, join=own.endpoint) as other:
                    # At once: the other loop trains on.
                    found = weights_of(late), weights_of(model)
                    own_task = Task(1)
                    train_until(other, lambda: own_task.step(late, stepped), lambda f: f["rounds"] >= 3)
                    joined.set()
                return found

            def first() -> None:
                while not joined.is_set():
                    step()

            (found, mine), _ = in_threads(second, first)
    assert (found - mine).norm() < (start - mine).norm() / 4


def test_a_loop_that_joins_as_the_last_other_one_leaves_begins_with_its_own_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leave = threading.Event()

    async def left_meanwhile(server: ControlServer, source: Member, *_: Any) -> list[Member]:
        leave.set()
        await server.wait_for(lambda: source.leaves)
        return [source]

    monkeypatch.setattr("shadowsync.attached.hub.admission.copy_replica", left_meanwhile)
    with hub(sync__algorithm="ma") as own:
        begun = threading.Event()

        def first() -> None:
            model, optimizer, step = small_loop()
            with shadowsync.attach(model, optimizer, join=own.endpoint):
                step()
                begun.set()
                assert leave.wait(END_SECONDS)

        def second() -> torch.Tensor:
            assert begun.wait(END_SECONDS)
            model, optimizer, step = small_loop(1, seed=5)
            with shadowsync.attach(model, optimizer, join=own.endpoint):
                found = weights_of(model)
                step()
            return found

        _, found = in_threads(first, second)
    assert torch.equal(found, weights_of(small_model(seed=5)))
    assert [(loop.state, loop.steps) for loop in present(own.book).loops] == [("left", 1), ("left", 1)]


def test_nothing_changes_while_paused() -> None:
    with hub(sync__algorithm="ma") as own:
        paused, done = threading.Event(), threading.Event()

        def first() -> tuple[bool, int]:
            model, optimizer, step = small_loop()
            with shadowsync.attach(model, optimizer, join=own.endpoint, wait_for=2) as sync:
                train_until(sync, step, lambda found: found["rounds"] >= 3)
                with sync.paused():
                    before, rounds = weights_of(model), sync.metrics()["rounds"]
                    paused.set()
                    done.wait(60)
                    same = torch.equal(before, weights_of(model))
                    same = same and sync.metrics()["rounds"] == rounds
                more = int(sync.metrics()["rounds"])
                train_until(sync, step, lambda found: found["rounds"] >= more + 2)
            return same, more

        def second() -> None:
            model, optimizer, step = small_loop(1)
            with shadowsync.attach(model, optimizer, join=own.endpoint, wait_for=2) as sync:
                while not paused.is_set():
                    step()
                at = sync.metrics()["rounds"]
                # The other one does not wait: its rounds go on.
                train_until(sync, step, lambda found: found["rounds"] >= at + 3)
                done.set()
                at = sync.metrics()["rounds"]
                train_until(sync, step, lambda found: found["rounds"] >= at + 3)

        (same, _), _ = in_threads(first, second)
    assert same


def test_the_single_model() -> None:
    with hub(sync__algorithm="easgd") as own:
        model, optimizer, step = small_loop()
        with shadowsync.attach(model, optimizer, join=own.endpoint) as sync:
            train_until(sync, step, lambda found: found["rounds"] >= 5)
            during = sync.model("center")
            assert type(during) is type(model)
            mine = sync.model("mine")
            with pytest.raises(shadowsync.AttachError, match="makes the model 'center'"):
                sync.model("mean")
        center = weights_of(sync.model())
    before = weights_of(mine)
    assert torch.isfinite(center).all()
    assert (center - weights_of(model)).norm() < (before - weights_of(during)).norm() + before.norm()
    assert not torch.equal(center, weights_of(small_model()))
    # Its parameters are not the model's.
    next(during.parameters()).data.zero_()
    assert next(model.parameters()).abs().sum() > 0
