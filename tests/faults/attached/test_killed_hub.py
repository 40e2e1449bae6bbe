"""A hub that is killed, and comes back from its folder: loops go on alone, and then together again."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import shadowsync
import torch
from shadowsync.attached.loop import AttachedLoop
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.commands import said
from shadowsync.tests.support.jobs.processes import Starter, wait_until
from shadowsync.tests.support.loops import attached_script
from shadowsync.tests.support.loops.attached_loops import hub as attached_hub
from shadowsync.tests.support.loops.attached_loops import (
    in_threads,
    sgd,
    small_loop,
    small_model,
    train_until,
    weights_of,
)
from shadowsync.tests.support.loops.killed_hub import SECONDS, KilledHub
from shadowsync.watch.status import read_status
from torch.utils.data import DataLoader, TensorDataset

LOOPS = 2

pytestmark = pytest.mark.timeout(900)


class InTheMiddle:
    """Where loops wait in the middle of a pass, until the hub is killed with all that it held."""

    def __init__(self) -> None:
        self._there, self._gone = threading.Barrier(LOOPS + 1), threading.Event()

    def wait(self) -> None:
        """Wait in a loop until the hub is gone."""
        self._there.wait(SECONDS)
        self._gone.wait(SECONDS)

    def replace(self, hub: KilledHub) -> None:
        """Kill the hub when all loops are there; another one takes its place."""
        self._there.wait(SECONDS)
        hub.kill()
        self._gone.set()
        hub.come_back()


@pytest.mark.parametrize("algorithm", ["easgd", pytest.param("ma", marks=pytest.mark.matrix)])
def test_loops_go_on_and_share_their_data_after_a_hub_came_back(
    starter: Starter, tmp_path: Path, algorithm: str
) -> None:
    size, batch = 600, 4
    data = TensorDataset(torch.arange(size))
    hub = KilledHub(starter, tmp_path, "--algo", algorithm, "--set", "sync.duty=0.5")
    in_the_middle = InTheMiddle()
    kept: list[dict[str, float]] = [{}, {}]

    def loop(index: int) -> list[int]:
        model, optimizer, step = small_loop(index)
        seen: list[int] = []
        with shadowsync.attach(
            model, optimizer, join=hub.address, wait_for=LOOPS, timeout_seconds=SECONDS
        ) as sync:
            sampler = sync.sampler(data, examples_per_step=batch, epochs=1, span=20)
            for number, (indices,) in enumerate(DataLoader(data, batch_size=batch, sampler=sampler)):
                step()
                seen += indices.tolist()
                if number == 7:
                    in_the_middle.wait()
            train_alone_and_together(sync, step)
            kept[index] = sync.metrics()
        return seen

    def train_alone_and_together(sync: AttachedLoop, step: Callable[[], Any]) -> None:
        rounds = sync.metrics()["rounds"]
        train_until(sync, step, lambda found: found["rounds"] >= rounds + 3)

    first, second, _ = in_threads(partial(loop, 0), partial(loop, 1), partial(in_the_middle.replace, hub))
    book = hub.ended()
    assert [one["name"] for one in book["loops"]] == ["loop-0", "loop-1"]
    for one in book["loops"]:
        # All that was trained, before, alone, and after, is in the book, and was synchronized.
        assert (one["state"], one["why"]) == ("left", "")
    assert sorted(one["steps"] for one in book["loops"]) == sorted(found["steps"] for found in kept)
    for one in book["loops"]:
        assert one["synchronized"] == one["steps"] > 8
    # Each example once: what the hub had granted, and to whom, outlived it.
    assert sorted(first + second) == list(range(size))
    (samples,) = book["samples"]
    assert samples["finished"] == size
    assert samples["granted"] == samples["finished"] + samples["returned"]
    assert samples["held"] == 0
    assert [found["lost"] for found in kept] == [0, 0]


def test_the_center_is_made_again_from_the_mean_of_the_replicas(starter: Starter, tmp_path: Path) -> None:
    """At a fixed rate, so that no round moves the center before it is looked at."""
    settings = ("--set", "sync.mode=fixed", "--set", "sync.every=50")
    hub = KilledHub(starter, tmp_path, *settings)
    trained, back, looked = (threading.Barrier(count) for count in (3, 2, 2))

    def loop(index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        model, optimizer, step = small_loop(index)
        with shadowsync.attach(
            model, optimizer, join=hub.address, wait_for=LOOPS, timeout_seconds=SECONDS
        ) as sync:
            for _ in range(70):
                step()
            before = weights_of(sync.model("center"))
            mine = weights_of(model)
            trained.wait(SECONDS)
            wait_until(lambda: sync.metrics()["lost"] == 1, "the loss is noticed", SECONDS)
            wait_until(lambda: sync.metrics()["lost"] == 0, "the hub is back", SECONDS)
            back.wait(SECONDS)
            assert torch.equal(weights_of(model), mine)
            center = weights_of(sync.model("center"))
            looked.wait(SECONDS)
            for _ in range(50):
                step()
            found = sync.metrics()
            assert (found["steps"], found["rounds"], found["synchronized_steps"]) == (120, 2, 100)
        return mine, before, center

    def fault() -> None:
        trained.wait(SECONDS)
        hub.kill()
        hub.come_back()

    first, second, _ = in_threads(partial(loop, 0), partial(loop, 1), fault)
    mean = (first[0] + second[0]) / 2
    assert torch.allclose(first[2], mean, atol=1e-6)
    assert torch.equal(first[2], second[2])
    # The control: the center that died with the hub was another one.
    assert not torch.allclose(first[1], mean, atol=1e-3)
    loops = hub.ended()["loops"]
    assert [(one["steps"], one["synchronized"]) for one in loops] == [(120, 120)] * 2


@pytest.mark.matrix
def test_a_loop_that_does_not_come_back_has_died_with_its_hub(starter: Starter, tmp_path: Path) -> None:
    size, batch = 400, 4
    data = TensorDataset(torch.arange(size))
    hub = KilledHub(starter, tmp_path, node_timeout_seconds=3)
    in_the_middle = InTheMiddle()

    class Gone(Exception):
        pass

    def loop(index: int) -> list[int]:
        model, optimizer, step = small_loop(index)
        seen: list[int] = []
        with shadowsync.attach(
            model, optimizer, join=hub.address, wait_for=LOOPS, timeout_seconds=SECONDS
        ) as sync:
            sampler = sync.sampler(data, examples_per_step=batch, epochs=1, span=40)
            for number, (indices,) in enumerate(DataLoader(data, batch_size=batch, sampler=sampler)):
                step()
                seen += indices.tolist()
                if number == 3:
                    in_the_middle.wait()
                    if index == 1:
                        raise Gone
        return seen

    def leave() -> None:
        with pytest.raises(Gone):
            loop(1)

    seen, _, _ = in_threads(partial(loop, 0), leave, partial(in_the_middle.replace, hub))
    book = hub.ended()
    left, died = sorted(book["loops"], key=lambda one: str(one["state"]), reverse=True)
    assert (left["state"], left["synchronized"]) == ("left", left["steps"])
    assert (died["state"], died["why"]) == ("died", "did not come back within 9 s")
    # As of its last heartbeat that the dead hub had recorded.
    assert 0 <= died["synchronized"] <= died["steps"] <= 4
    (samples,) = book["samples"]
    assert samples["granted"] == samples["finished"] + samples["returned"]
    assert samples["finished"] == size
    # What the dead one held and had not finished was given out again.
    assert samples["returned"] >= 40 - 4 * batch
    assert len(seen) == len(set(seen)) == size - batch * died["steps"]


def test_a_loop_that_was_declared_dead_and_lives_comes_back(starter: Starter, tmp_path: Path) -> None:
    """Its process is stopped for longer than the hub's patience."""
    folder = tmp_path / "hub"
    folder.mkdir()
    with attached_hub({"folder": folder}, run__node_timeout_seconds=4.0) as own:
        arguments = ("1", own.endpoint, "1", str(tmp_path))
        loop = starter.fork(*arguments, script=Path(attached_script.__file__))

        def events() -> list[str]:
            text = said("top", "--join", own.endpoint, "--once", "--json")
            assert loop.poll() is None, loop.text()
            return [one.what for one in read_status(json.loads(text)).incidents]

        wait_until(lambda: events() == ["joined"], "the loop trains", SECONDS)
        loop.signal(signal.SIGSTOP)
        try:
            wait_until(lambda: events()[-1] == "was silent for 4 s", "it is declared dead", SECONDS)
        finally:
            loop.signal(signal.SIGCONT)
        wait_until(lambda: "came back" in events(), "it is back", SECONDS)
        model = small_model()
        # It ends once it knows of another one.
        with shadowsync.attach(model, sgd(model), join=own.endpoint):
            assert loop.wait(SECONDS) == 0, loop.text()
    first, _ = present(own.book).loops
    assert (first.name, first.state) == ("loop-0", "left")
    assert first.synchronized == first.steps > 0
