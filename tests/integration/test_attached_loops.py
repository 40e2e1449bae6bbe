"""Loops of torch that synchronize: `shadowsync.attach` with a hub in the test's own process."""

from __future__ import annotations

import copy
import itertools
import math
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import shadowsync
import torch
from shadowsync.attached.loop import AttachedLoop
from shadowsync.pipeline.errors import ClusterError
from shadowsync.pipeline.wire.keys.job_key import KEY_VARIABLE, JobKey
from shadowsync.tests.support.attached_loops import Task, hub, in_threads, small_model, weights_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.timeout(170)


def sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def train_until(
    sync: AttachedLoop, step: Callable[[], Any], done: Callable[[dict[str, float]], bool], most: int = 20_000
) -> None:
    """Train until the loop's own figures say so."""
    for _ in range(most):
        step()
        if done(sync.metrics()):
            return
    raise AssertionError(f"not after {most} steps: {sync.metrics()}")


def distance(replicas: list[torch.Tensor]) -> float:
    """Mean distance from the mean, relative to the mean."""
    stacked = torch.stack(replicas)
    mean = stacked.mean(dim=0)
    return float((stacked - mean).norm(dim=1).mean() / mean.norm())


@pytest.mark.parametrize(
    ("algorithm", "count"), [("easgd", 2), ("easgd", 4), ("ma", 2), ("bmuf", 2), ("downpour", 2)]
)
def test_the_loss_falls_and_replicas_stay_together(algorithm: str, count: int) -> None:
    """The control: as many loops without synchronization end far apart."""

    def loop(address: str, index: int, rounds: float) -> tuple[float, float, torch.Tensor, dict[str, float]]:
        model, task = small_model(), Task(index)
        optimizer = sgd(model)
        with shadowsync.attach(model, optimizer, join=address, wait_for=count) as sync:
            first = task.step(model, optimizer)
            train_until(
                sync,
                lambda: task.step(model, optimizer),
                lambda found: found["rounds"] >= rounds and found["steps"] >= 150,
            )
            last = sum(task.step(model, optimizer) for _ in range(10)) / 10
            counts = sync.metrics()
        return first, last, weights_of(model), counts

    apart = []
    for name in (algorithm, "none"):
        with hub(sync__algorithm=name) as own:
            rounds = 0.0 if name == "none" else 12.0
            found = in_threads(*(partial(loop, own.endpoint, at, rounds) for at in range(count)))
        assert all(last < first / 3 for first, last, _, _ in found)
        apart.append(distance([weights for _, _, weights, _ in found]))
        assert own.book is not None
        assert [one.state for one in own.book.loops] == ["left"] * count
        for one, (_, _, _, counts) in zip(own.book.loops, found, strict=True):
            assert one.steps >= 150
            if name != "none":
                # The closing round carries all that was trained.
                assert one.synchronized == one.steps
                assert counts["sent_bytes"] > 0
                assert counts["sync_gap_mean"] > 0
    assert apart[0] < apart[1] / 2


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
        model, task = small_model(), Task(index)
        optimizer = sgd(model)
        own = []
        with shadowsync.attach(model, optimizer, join=address, wait_for=2) as sync:
            assert sync.metrics()["members"] == 2
            # Rounds do not wait for a loop that has not begun.
            both.wait(60)
            for _ in range(every * rounds):
                task.step(model, optimizer)
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
        model, task = small_model(), Task(0)
        optimizer = sgd(model)
        with shadowsync.attach(model, optimizer, join=own.endpoint) as sync:
            train_until(sync, lambda: task.step(model, optimizer), lambda found: found["steps"] >= 300)
            train_until(sync, lambda: task.step(model, optimizer), lambda found: found["rounds"] >= 20)
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
        model, task = small_model(), Task(0)
        optimizer = sgd(model)
        with shadowsync.attach(model, optimizer, join=own.endpoint) as sync:
            train_until(sync, lambda: task.step(model, optimizer), lambda found: found["steps"] >= 200)
            joined = threading.Event()
            late = small_model(seed=5)
            start = weights_of(late)

            def second() -> torch.Tensor:
                stepped = sgd(late)
                with shadowsync.attach(late, stepped, join=own.endpoint) as other:
                    found = weights_of(late)
                    own_task = Task(1)
                    train_until(other, lambda: own_task.step(late, stepped), lambda f: f["rounds"] >= 3)
                    joined.set()
                return found

            def first() -> None:
                while not joined.is_set():
                    task.step(model, optimizer)

            found, _ = in_threads(second, first)
        mine = weights_of(model)
    assert (found - mine).norm() < (start - mine).norm() / 4


def test_an_exception_leaves_as_it_was_and_nothing_else_is_left() -> None:
    with hub() as own:
        model, task = small_model(), Task(0)
        optimizer = sgd(model)
        error = ZeroDivisionError("mine")

        def fail(own_error: Exception) -> None:
            with shadowsync.attach(model, optimizer, join=own.endpoint):
                task.step(model, optimizer)
                raise own_error

        with pytest.raises(ZeroDivisionError) as raised:
            fail(error)
        assert raised.value is error
        assert error.__context__ is None
        assert error.__cause__ is None
        # The parameters are plain tensors, each with memory of its own, and the loop goes on by itself.
        sizes = {p.untyped_storage().nbytes() for p in model.parameters()}
        assert sizes == {4 * p.numel() for p in model.parameters()}
        task.step(model, optimizer)
        # The model can be attached again.
        with shadowsync.attach(model, optimizer, join=own.endpoint):
            task.step(model, optimizer)
    assert own.book is not None
    assert [one.state for one in own.book.loops] == ["left", "left"]
    # An exception makes no closing round; a clean end does, the control.
    assert own.book.loops[1].synchronized == own.book.loops[1].steps == 1


@pytest.mark.parametrize(
    ("breaks", "what"),
    [
        (lambda model: model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True), "assign"),
        (lambda model: model.double().float(), "elsewhere"),
        (lambda model: setattr(model[3].bias, "data", model[3].bias.data.clone()), "elsewhere"),
    ],
)
def test_broken_views_are_noticed_within_one_step(breaks: Callable[[Any], Any], what: str) -> None:
    with hub() as own:
        model, task = small_model(), Task(0)
        optimizer = sgd(model)
        with shadowsync.attach(model, optimizer, join=own.endpoint) as sync:
            task.step(model, optimizer)
            # What keeps the views is no fault, the control.
            model.load_state_dict(copy.deepcopy(model.state_dict()))
            model.to(torch.float32)
            task.step(model, optimizer)
            breaks(model)
            with pytest.raises(shadowsync.AttachError, match=what):
                task.step(model, optimizer)
            assert sync.steps == 2


def test_nothing_changes_while_paused() -> None:
    with hub(sync__algorithm="ma") as own:
        paused, done = threading.Event(), threading.Event()

        def first() -> tuple[bool, int]:
            model, task = small_model(), Task(0)
            optimizer = sgd(model)
            with shadowsync.attach(model, optimizer, join=own.endpoint, wait_for=2) as sync:
                train_until(sync, lambda: task.step(model, optimizer), lambda found: found["rounds"] >= 3)
                with sync.paused():
                    before, rounds = weights_of(model), sync.metrics()["rounds"]
                    paused.set()
                    done.wait(60)
                    same = torch.equal(before, weights_of(model))
                    same = same and sync.metrics()["rounds"] == rounds
                more = int(sync.metrics()["rounds"])
                train_until(
                    sync, lambda: task.step(model, optimizer), lambda found: found["rounds"] >= more + 2
                )
            return same, more

        def second() -> None:
            model, task = small_model(), Task(1)
            optimizer = sgd(model)
            with shadowsync.attach(model, optimizer, join=own.endpoint, wait_for=2) as sync:
                while not paused.is_set():
                    task.step(model, optimizer)
                at = sync.metrics()["rounds"]
                # The other one does not wait: its rounds go on.
                train_until(
                    sync, lambda: task.step(model, optimizer), lambda found: found["rounds"] >= at + 3
                )
                done.set()
                at = sync.metrics()["rounds"]
                train_until(
                    sync, lambda: task.step(model, optimizer), lambda found: found["rounds"] >= at + 3
                )

        (same, _), _ = in_threads(first, second)
    assert same


def test_the_single_model() -> None:
    with hub(sync__algorithm="easgd") as own:
        model, task = small_model(), Task(0)
        optimizer = sgd(model)
        with shadowsync.attach(model, optimizer, join=own.endpoint) as sync:
            train_until(sync, lambda: task.step(model, optimizer), lambda found: found["rounds"] >= 5)
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


def test_other_models_and_settings_are_refused_and_nothing_is_changed() -> None:
    with hub(sync__algorithm="easgd", sync__gap=3) as own:
        model = small_model()
        with shadowsync.attach(model, sgd(model), join=own.endpoint, algorithm="easgd", gap=3):
            other = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
            before = [p.data_ptr() for p in other.parameters()]
            with pytest.raises(ClusterError, match=r"1.weight \[8\]|2.weight \[2, 8\]"):
                shadowsync.attach(other, sgd(other), join=own.endpoint)
            same = small_model()
            with pytest.raises(ClusterError, match=r"sync\.gap: the loop wants 5, and the hub has 3"):
                shadowsync.attach(same, sgd(same), join=own.endpoint, gap=5)
            with pytest.raises(shadowsync.AttachError, match=r"0\.weight: is attached already"):
                shadowsync.attach(model, sgd(model), join=own.endpoint)
            assert [p.data_ptr() for p in other.parameters()] == before
            # The control: the same model is taken.
            with shadowsync.attach(same, sgd(same), join=own.endpoint):
                pass


def test_no_hub_there() -> None:
    model = small_model()
    before = [p.data_ptr() for p in model.parameters()]
    with pytest.raises(ClusterError, match="no coordinator answered within 1 s"):
        shadowsync.attach(model, sgd(model), join="tcp://127.0.0.1:9", timeout_seconds=1.0)
    assert [p.data_ptr() for p in model.parameters()] == before


def test_loops_and_hub_need_the_same_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "job.key"
    JobKey.generate().write(key)
    monkeypatch.setenv(KEY_VARIABLE, str(key))
    with hub() as own:
        model, task = small_model(), Task(0)
        optimizer = sgd(model)
        with shadowsync.attach(model, optimizer, join=own.endpoint, key=key) as sync:
            train_until(sync, lambda: task.step(model, optimizer), lambda found: found["rounds"] >= 2)
        monkeypatch.delenv(KEY_VARIABLE)
        before = [p.data_ptr() for p in model.parameters()]
        with pytest.raises(ClusterError, match="have different keys, or only one has a key"):
            shadowsync.attach(model, optimizer, join=own.endpoint)
        assert [p.data_ptr() for p in model.parameters()] == before
        monkeypatch.setenv(KEY_VARIABLE, str(key))


def test_a_lost_hub_is_told_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    model, task = small_model(), Task(0)
    optimizer = sgd(model)
    with hub() as own:
        sync = shadowsync.attach(model, optimizer, join=own.endpoint)
        task.step(model, optimizer)
    for _ in itertools.takewhile(lambda _: not sync.is_lost, range(100_000)):
        task.step(model, optimizer)
    task.step(model, optimizer)
    assert sync.metrics()["lost"] == 1
    assert "trains alone" in caplog.text
    sync.finish()
    assert "closing round could not be made" in caplog.text


def test_a_forked_process_touches_nothing() -> None:
    with hub() as own:
        model, task = small_model(), Task(0)
        optimizer = sgd(model)
        with shadowsync.attach(model, optimizer, join=own.endpoint) as sync:
            task.step(model, optimizer)
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    task.step(model, optimizer)
                except shadowsync.AttachError as error:
                    os.write(write, str(error).encode())
                sync.__exit__(None, None, None)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert b"was forked after attach" in os.read(read, 1000)
            os.close(read)
            os.close(write)
            # Its parent goes on.
            train_until(sync, lambda: task.step(model, optimizer), lambda found: found["rounds"] >= 3)
    assert own.book is not None
    assert own.book.loops[0].state == "left"


def test_loops_share_a_data_set() -> None:
    """Each example once in each epoch, over all loops; and again if a loop did not train it."""
    size, epochs = 50, 3
    data = TensorDataset(torch.arange(float(size)))
    seen: list[list[int]] = [[], []]
    with hub(sync__algorithm="none") as own:

        def loop(index: int) -> None:
            model = nn.Linear(1, 1)
            optimizer = sgd(model, lr=1e-6)
            with shadowsync.attach(model, optimizer, join=own.endpoint, wait_for=2) as sync:
                sampler = sync.sampler(data, examples_per_step=4, epochs=epochs, span=7, seed=3)
                loader = DataLoader(data, batch_size=4, sampler=sampler)
                for _ in range(2 * epochs):
                    for (x,) in loader:
                        seen[index] += x.int().tolist()
                        optimizer.zero_grad()
                        model(x.view(-1, 1)).sum().backward()
                        optimizer.step()

        in_threads(lambda: loop(0), lambda: loop(1))
    assert sorted(seen[0] + seen[1]) == sorted(list(range(size)) * epochs)
    assert own.book is not None
    (samples,) = own.book.samples
    assert (samples.granted, samples.finished, samples.returned, samples.held) == (150, 150, 0, 0)


def test_what_a_broken_pass_did_not_train_is_given_out_again() -> None:
    data = TensorDataset(torch.arange(40.0))
    with hub(sync__algorithm="none") as own:
        model = nn.Linear(1, 1)
        optimizer = sgd(model, lr=1e-6)
        with shadowsync.attach(model, optimizer, join=own.endpoint) as sync:
            sampler = sync.sampler(data, examples_per_step=4, epochs=1, span=16)
            seen: list[int] = []
            for at, (x,) in enumerate(DataLoader(data, batch_size=4, sampler=sampler)):
                seen += x.int().tolist()
                model(x.view(-1, 1)).sum().backward()
                optimizer.step()
                if at == 2:
                    break
            for (x,) in DataLoader(data, batch_size=4, sampler=sampler):
                seen += x.int().tolist()
                optimizer.step()
    assert sorted(seen) == list(range(40))
    assert own.book is not None
    (samples,) = own.book.samples
    assert samples.finished == 40
    assert samples.granted == samples.finished + samples.returned
    assert samples.returned > 0
    assert not math.isnan(samples.granted)
