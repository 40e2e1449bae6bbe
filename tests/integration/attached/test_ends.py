"""How attached loops end, what they refuse, and the data set that they share."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import shadowsync
import torch
from shadowsync.attached.hub import hosted, serve
from shadowsync.attached.hub.expected_members import ExpectedMembers
from shadowsync.attached.hub.members import LOOP
from shadowsync.attached.hub.serve import HubThread
from shadowsync.attached.node_thread import NodeThread
from shadowsync.nodes.runtime.role import Role
from shadowsync.nodes.runtime.settings import NodeSettings
from shadowsync.pipeline.errors import ClusterError, ExitCode
from shadowsync.pipeline.wire.keys.job_key import KEY_VARIABLE, JobKey
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.loops.attached_loops import (
    END_SECONDS,
    hub,
    in_threads,
    sgd,
    small_loop,
    small_model,
    train_until,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NOBODY = "tcp://127.0.0.1:1"
"""An address at which nobody listens."""


def test_an_exception_leaves_as_it_was_and_nothing_else_is_left() -> None:
    with hub() as own:
        model, optimizer, step = small_loop()
        error = ZeroDivisionError("mine")

        def fail(own_error: Exception) -> None:
            with shadowsync.attach(model, optimizer, join=own.endpoint):
                step()
                raise own_error

        with pytest.raises(ZeroDivisionError) as raised:
            fail(error)
        assert raised.value is error
        assert error.__context__ is None
        assert error.__cause__ is None
        # The parameters are plain tensors, each with memory of its own, and the loop goes on by itself.
        sizes = {p.untyped_storage().nbytes() for p in model.parameters()}
        assert sizes == {4 * p.numel() for p in model.parameters()}
        step()
        # The model can be attached again.
        with shadowsync.attach(model, optimizer, join=own.endpoint):
            step()
    assert own.book is not None
    assert [one.state for one in own.book.loops] == ["left", "left"]
    # An exception makes no closing round; a clean end does, the control.
    assert own.book.loops[1].synchronized == own.book.loops[1].steps == 1


def test_a_hub_ends_at_once_though_its_sync_node_has_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that is interrupted right after its start: nobody tells that node to end."""
    asked: list[NodeThread[Role]] = []

    def elsewhere(role: str, settings: NodeSettings, _bound: str, index: int) -> NodeThread[Role]:
        asked.append(hosted.hosted_node(role, settings, NOBODY, index))
        return asked[-1]

    monkeypatch.setattr(serve, "hosted_node", elsewhere)
    monkeypatch.setattr(hosted, "END_SECONDS", 10 * END_SECONDS)
    with hub():
        pass
    (node,) = asked
    assert node.ended.result(0)[0] == ExitCode.OK


class Impatient(ExpectedMembers):
    """Waits half a second for who has not come; a hub with that as its timeout loses those who just came."""

    def update(
        self, now: float, arrived: Mapping[str, int], present: Mapping[str, int], patience_seconds: float
    ) -> dict[str, int]:
        del patience_seconds
        return super().update(now, arrived, present, 0.5)


def test_a_hub_of_two_awaits_the_second_loop_after_the_first_has_left() -> None:
    """A fast process of a launch may be done before a slow one has begun."""

    def train(own: HubThread) -> None:
        model = small_model()
        with shadowsync.attach(model, sgd(model), join=own.endpoint):
            pass

    def awaiting(expected: ExpectedMembers, count: int) -> dict[str, Any]:
        expected.expect(LOOP, count)
        return {"expected": expected}

    with hub(thread=awaiting(ExpectedMembers(), 2)) as own:
        train(own)
        assert not own.join(0.5)
        train(own)
        assert own.join(END_SECONDS)
    # The controls: it expects one only, or gives up the second one, which does not come.
    for given in (awaiting(ExpectedMembers(), 1), awaiting(Impatient(), 2)):
        with hub(thread=given) as own:
            train(own)
            assert own.join(END_SECONDS)


@pytest.mark.parametrize(
    ("breaks", "what"),
    [
        (lambda model: model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True), "assign"),
        (lambda model: model.double(), "0.weight: is now float64"),
        (lambda model: setattr(model[3].bias, "data", torch.zeros(3)), r"3.bias: is now float32 \[3\]"),
        (lambda model: setattr(model, "3", torch.nn.Linear(8, 1)), "3: was replaced since attach"),
    ],
)
def test_a_step_that_would_not_be_synchronized_is_refused(breaks: Callable[[Any], Any], what: str) -> None:
    # Without rounds: one in the background may change parameters at any time.
    with hub(sync__algorithm="none") as own:
        model, optimizer, step = small_loop()
        with shadowsync.attach(model, optimizer, join=own.endpoint, algorithm="none") as sync:
            step()
            # What keeps the parameters is no fault, the control.
            model.load_state_dict(copy.deepcopy(model.state_dict()))
            model.to(torch.float32)
            step()
            breaks(model)
            before = [p.detach().clone() for p in model.parameters()]
            with pytest.raises(shadowsync.AttachError, match=what):
                optimizer.step()
            assert sync.steps == 2
            assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


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
    with pytest.raises(ClusterError, match="no hub answered within 1 s; start the hub first"):
        shadowsync.attach(model, sgd(model), join="tcp://127.0.0.1:9", timeout_seconds=1.0)
    assert [p.data_ptr() for p in model.parameters()] == before


def test_loops_and_hub_need_the_same_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "job.key"
    JobKey.generate().write(key)
    monkeypatch.setenv(KEY_VARIABLE, str(key))
    with hub() as own:
        model, optimizer, step = small_loop()
        with shadowsync.attach(model, optimizer, join=own.endpoint, key=key) as sync:
            train_until(sync, step, lambda found: found["rounds"] >= 2)
        monkeypatch.delenv(KEY_VARIABLE)
        before = [p.data_ptr() for p in model.parameters()]
        with pytest.raises(ClusterError, match="the hub and this node have different keys"):
            shadowsync.attach(model, optimizer, join=own.endpoint)
        assert [p.data_ptr() for p in model.parameters()] == before
        monkeypatch.setenv(KEY_VARIABLE, str(key))


def test_a_lost_hub_is_told_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer, step = small_loop()
    with hub() as own:
        sync = shadowsync.attach(model, optimizer, join=own.endpoint)
        step()
    train_until(sync, step, lambda found: found["lost"] == 1)
    step()
    assert "trains alone" in caplog.text
    sync.finish()
    assert "closing round could not be made" in caplog.text


def test_a_forked_process_touches_nothing() -> None:
    with hub() as own:
        model, optimizer, step = small_loop()
        with shadowsync.attach(model, optimizer, join=own.endpoint) as sync:
            step()
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    step()
                except shadowsync.AttachError as error:
                    os.write(write, str(error).encode())
                sync.__exit__(None, None, None)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert b"was forked after attach" in os.read(read, 1000)
            os.close(read)
            os.close(write)
            # Its parent goes on.
            train_until(sync, step, lambda found: found["rounds"] >= 3)
    assert present(own.book).loops[0].state == "left"


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
    (samples,) = present(own.book).samples
    assert (samples.granted, samples.finished, samples.returned, samples.held) == (150, 150, 0, 0)


def test_a_loader_with_the_shared_sampler_has_no_length() -> None:
    with hub() as own:
        model, optimizer, step = small_loop()
        with shadowsync.attach(model, optimizer, join=own.endpoint) as sync:
            step()
            sampler = sync.sampler(range(40), epochs=1)
            loader = DataLoader(TensorDataset(torch.arange(40)), batch_size=8, sampler=sampler)
            # Torch and others ask for it, and take a TypeError for none.
            with pytest.raises(TypeError, match=r"a shared sampler has no length: the 40 .*len\(dataset\)"):
                len(loader)
            assert sampler
            assert sorted(int(one) for (batch,) in loader for one in batch) == list(range(40))


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
    (samples,) = present(own.book).samples
    assert samples.finished == 40
    assert samples.granted == samples.finished + samples.returned
    assert samples.returned > 0
