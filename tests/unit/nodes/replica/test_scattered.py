"""A replica over parameters in storages of their own: the same as over one flat buffer, wherever they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.nodes.replica.buffer import FlatReplica
from shadowsync.nodes.replica.cuda import DeviceReplica
from shadowsync.nodes.replica.scattered import ScatteredBuffer
from shadowsync.pipeline.models.training.flat import FlatLayout
from shadowsync.sync_algos.base import Slice
from shadowsync.tests.support.fake_streams import FakeStreams
from torch import nn


class Shapes(nn.Module):
    """Parameters of many shapes and strides; the sizes leave gaps in the layout."""

    def __init__(self) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(3)
        image = torch.randn(5, 3, 4, 2, generator=draws).to(memory_format=torch.channels_last)
        shapes = [(7,), (3, 5), (), (2, 3, 4)]
        self.parts = nn.ParameterList(nn.Parameter(torch.randn(one, generator=draws)) for one in shapes)
        self.image = nn.Parameter(image)
        self.turned = nn.Parameter(torch.randn(6, 9, generator=draws).t())
        self.every_second = nn.Parameter(torch.randn(20, generator=draws)[::2])


def scattered(module: nn.Module) -> tuple[FlatLayout, ScatteredBuffer]:
    layout = FlatLayout(module)
    return layout, ScatteredBuffer(layout, list(module.parameters()))


def on_the_cpu(buffer: Any) -> FlatReplica:
    return FlatReplica(buffer, np.zeros(1, np.int64))


def on_a_device(buffer: Any) -> FlatReplica:
    return DeviceReplica(buffer, np.zeros(1, np.int64), FakeStreams())


@pytest.mark.parametrize("make", [on_the_cpu, on_a_device])
def test_it_is_as_one_buffer(make: Callable[[Any], FlatReplica]) -> None:
    """For every slice and stride; parameters keep storage, strides and version."""
    module = Shapes()
    layout, buffer = scattered(module)
    flat = layout.gather(module)
    one, other = make(flat), make(buffer)
    before = [(p.data_ptr(), p.stride(), p._version) for p in module.parameters()]
    given = torch.randn(layout.numel, generator=torch.Generator().manual_seed(4))
    assert (one.numel, one.whole) == (other.numel, other.whole)
    for start in range(0, layout.numel, 7):
        for stop in (start, start + 1, start + 29, layout.numel):
            part = Slice(start, min(stop, layout.numel))
            assert torch.equal(one.snapshot(part), other.snapshot(part)), part
            for stride in (1, 3, 16):
                assert torch.equal(
                    one.read(part.start, part.stop, stride), other.read(part.start, part.stop, stride)
                )
    for part in (one.whole, Slice(3, 90), Slice(30, 31), Slice(100, layout.numel)):
        # Beside the parameters there is nothing.
        mine = given[part.start : part.stop]
        known = mine * (layout.gather(_ones()) != 0)[part.start : part.stop]
        one.add_(part, known, -0.5)
        other.add_(part, mine, -0.5)
        one.interpolate_(part, known, 0.3)
        other.interpolate_(part, mine, 0.3)
        assert torch.equal(one.snapshot(one.whole), other.snapshot(other.whole)), part
        assert torch.equal(layout.gather(module), one.snapshot(one.whole))
    assert [(p.data_ptr(), p.stride(), p._version) for p in module.parameters()] == before
    other.interpolate_(other.whole, given, 1.0)
    for span, value in layout.views(given):
        assert torch.equal(dict(module.named_parameters())[span.name], value)


def _ones() -> nn.Module:
    module = Shapes()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(1.0)
    return module


def test_values_are_followed_wherever_they_go() -> None:
    module = nn.Linear(3, 2)
    _, buffer = scattered(module)
    replica = on_the_cpu(buffer)
    old = module.weight.data
    module.weight.data = torch.full((2, 3), 5.0)
    assert torch.equal(replica.snapshot(Slice(0, 6)), torch.full((6,), 5.0))
    replica.add_(Slice(0, 6), torch.ones(6), 2.0)
    assert torch.equal(module.weight.data, torch.full((2, 3), 7.0))
    assert not torch.equal(old, module.weight.data)
    # The same place, read in another order.
    square = nn.Linear(2, 2, bias=False)
    _, buffer = scattered(square)
    replica = on_the_cpu(buffer)
    square.weight.data.copy_(torch.arange(4.0).view(2, 2))
    square.weight.data = square.weight.data.t()
    assert replica.snapshot(Slice(0, 4)).tolist() == [0.0, 2.0, 1.0, 3.0]
    square.share_memory()
    replica.add_(Slice(0, 4), torch.ones(4), 1.0)
    assert square.weight.flatten().tolist() == [1.0, 3.0, 2.0, 4.0]


def test_a_module_that_is_half_for_a_while_breaks_no_round() -> None:
    module = nn.Linear(3, 2)
    _, buffer = scattered(module)
    replica = on_the_cpu(buffer)
    first = replica.snapshot(replica.whole)
    module.half()
    assert torch.equal(replica.snapshot(replica.whole), first)
    replica.interpolate_(replica.whole, torch.zeros_like(first), 1.0)
    module.float()
    # What the user had is what counts.
    assert torch.allclose(replica.snapshot(replica.whole), first, atol=1e-3)
    assert first.abs().max() > 0.1


@pytest.mark.parametrize("who", ["rounds", "user"])
def test_who_changed_the_values(who: str) -> None:
    module = nn.Linear(3, 2)
    _, buffer = scattered(module)
    replica = on_the_cpu(buffer)
    buffer.watch()
    replica.add_(replica.whole, torch.ones(replica.numel), 0.1)
    assert not buffer.check_for_foreign_changes()
    if who == "user":
        module.weight.data -= 0.1
    replica.add_(replica.whole, torch.ones(replica.numel), 0.1)
    assert buffer.check_for_foreign_changes() == (who == "user")


@pytest.mark.parametrize("who", ["nobody", "in place", "elsewhere"])
@pytest.mark.parametrize("operation", ["_foreach_add_", "_foreach_lerp_"])
def test_what_the_user_changes_as_a_round_does_is_seen(
    monkeypatch: pytest.MonkeyPatch, operation: str, who: str
) -> None:
    """Before and after each of the round's own operations; moved values may be found at once."""
    own = getattr(torch, operation)
    # The number of the place at which the user comes, of all in a change.
    for when in range(4):
        module, place = nn.Linear(3, 2), 0
        _, buffer = scattered(module)

        def user(buffer: ScatteredBuffer = buffer, module: nn.Linear = module, when: int = when) -> None:
            nonlocal place
            if place == when and who == "in place":
                module.weight.data -= 0.1
            elif place == when and who == "elsewhere":
                module.weight.data = module.weight.data - 0.1
                buffer.refresh()
            place += 1

        def between(*arguments: Any, **more: Any) -> None:
            user()
            own(*arguments, **more)
            user()

        buffer.watch()
        monkeypatch.setattr(torch, operation, between)
        if operation == "_foreach_add_":
            buffer.add_(0, buffer.numel(), torch.ones(buffer.numel()), 0.1)
        else:
            buffer.lerp_(0, buffer.numel(), torch.ones(buffer.numel()), 0.1)
        assert place == 4
        assert buffer.check_for_foreign_changes() == (who != "nobody"), when


def test_rounds_alone_change_nothing_behind_the_users_back() -> None:
    """Of every shape and stride, a change of a copy has the bits of one of the values."""
    module = Shapes()
    layout, buffer = scattered(module)
    draws = torch.Generator().manual_seed(5)
    buffer.watch()
    for number in range(50):
        start = number * 3
        given = torch.randn(layout.numel - start, generator=draws)
        buffer.add_(start, layout.numel, given, 0.37)
        buffer.lerp_(start, layout.numel, given, 0.01 * number)
        assert not buffer.check_for_foreign_changes()
    module.image.data[0, 0, 0, 0] += 1e-3
    assert buffer.check_for_foreign_changes()


def test_a_device_awaits_what_the_loop_has_enqueued_and_keeps_what_it_uses() -> None:
    streams, module = FakeStreams(), nn.Linear(3, 2)
    used: list[int] = []
    streams.used_on = lambda stream, tensor: used.append(tensor.data_ptr())  # type: ignore[method-assign]  # noqa: ARG005
    _, buffer = scattered(module)
    replica = DeviceReplica(buffer, np.zeros(1, np.int64), streams)
    replica.snapshot(replica.whole)
    places = [p.data_ptr() for p in module.parameters()]
    assert used == places
    module.bias.data = torch.ones(2)
    replica.add_(replica.whole, torch.ones(replica.numel), 1.0)
    assert used == [*places, module.bias.data_ptr()]
    recorded = [at for at, line in enumerate(streams.log) if line.endswith("on default stream")]
    event = streams.log[recorded[-1]].split(" on ")[0].removeprefix("record ")
    assert streams.log[recorded[-1] + 1] == f"stream 1 behind {event}"
