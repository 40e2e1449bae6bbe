"""The flat replica: views that share memory, and workers that do not stop each other."""

from __future__ import annotations

import copy
import hashlib

import numpy as np
import pytest
import torch
from shadowsync.pipeline.config.trainer import TrainerSection
from shadowsync.pipeline.models.training.flat import FlatLayout, digest_of
from shadowsync.pipeline.models.training.optimizers import SharedOptimizer
from torch import nn


class Odd(nn.Module):
    """Parameters of odd sizes: a scalar, nothing at all, a tied weight, three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.first = nn.Linear(5, 5)
        self.cube = nn.Parameter(torch.arange(2 * 3 * 7, dtype=torch.float32).view(2, 3, 7))
        self.nothing = nn.Parameter(torch.empty(0))
        self.second = nn.Linear(5, 5, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.scale * self.second(torch.relu(self.first(x))) + self.cube.sum()
        return result


def _two_layers(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


def _gaps(layout: FlatLayout) -> torch.Tensor:
    gaps = torch.ones(layout.numel, dtype=torch.bool)
    for span in layout.spans:
        gaps[span.start : span.start + span.numel] = False
    return gaps


def test_layout_has_each_parameter_once_and_aligned() -> None:
    layout = FlatLayout(Odd())
    assert [(span.name, span.start, span.shape) for span in layout.spans] == [
        ("scale", 0, ()),
        ("cube", 16, (2, 3, 7)),
        ("nothing", 64, (0,)),
        ("first.weight", 64, (5, 5)),
        ("first.bias", 96, (5,)),
    ]
    assert layout.numel == 112
    assert [span.numel for span in layout.spans] == [1, 42, 0, 25, 5]


def test_gather_copies_values_and_leaves_the_gaps_zero() -> None:
    module = Odd()
    layout = FlatLayout(module)
    flat = layout.gather(module)
    assert flat.dtype == torch.float32
    for name, parameter in module.named_parameters():
        span = next(span for span in layout.spans if span.name == name)
        assert torch.equal(flat[span.start : span.start + span.numel], parameter.detach().flatten())
    assert _gaps(layout).sum() == layout.numel - 73
    assert not flat[_gaps(layout)].any()
    flat.fill_(7.0)
    assert module.scale.item() == 2.0, "a copy"


def test_attached_parameters_are_the_buffer() -> None:
    module = Odd()
    layout = FlatLayout(module)
    flat = layout.gather(module)
    x = torch.randn(4, 5)
    before = module(x)
    layout.attach(module, flat)
    assert torch.equal(module(x), before)
    assert module.second.weight is module.first.weight, "still tied"
    for span in layout.spans:
        assert (
            module.get_parameter(span.name).data_ptr() == flat.data_ptr() + 4 * span.start or not span.numel
        )
    flat[0] = 3.0
    assert module.scale.item() == 3.0
    with torch.no_grad():
        module.first.bias.fill_(9.0)
    assert flat[96:101].tolist() == [9.0] * 5
    assert not torch.equal(module(x), before), "the control: other values, another answer"


def test_no_other_precision() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to(torch.bfloat16))
    with pytest.raises(TypeError, match=r"parameter 1\.weight is torch\.bfloat16; .* float32 only"):
        FlatLayout(module)


def test_gradients_gather_in_the_buffer_of_each_worker() -> None:
    plain = _two_layers()
    layout = FlatLayout(plain)
    flat = layout.gather(plain)
    workers = [copy.deepcopy(plain) for _ in range(2)]
    gradients = [torch.zeros(layout.numel) for _ in workers]
    inputs = [torch.randn(6, 3, generator=torch.Generator().manual_seed(n)) for n in range(2)]
    for worker, gradient in zip(workers, gradients, strict=True):
        layout.attach(worker, flat, gradient)
    losses = [worker(x).square().mean() for worker, x in zip(workers, inputs, strict=True)]
    for loss in losses:
        loss.backward()
    for x, gradient in zip(inputs, gradients, strict=True):
        plain.zero_grad()
        plain(x).square().mean().backward()
        for span, view in layout.views(gradient):
            expected = plain.get_parameter(span.name).grad
            assert expected is not None
            assert torch.equal(view, expected)
        assert not gradient[_gaps(layout)].any()
    assert not torch.allclose(gradients[0], gradients[1]), "the control: two batches, two gradients"
    for worker, gradient in zip(workers, gradients, strict=True):
        first = worker.get_parameter("0.weight").grad
        assert first is not None
        assert first.data_ptr() == gradient.data_ptr(), "backward has put no other tensor there"


def test_a_second_backward_adds_up_in_the_buffer() -> None:
    module = _two_layers()
    layout = FlatLayout(module)
    gradient = torch.zeros(layout.numel)
    layout.attach(module, layout.gather(module), gradient)
    x = torch.randn(4, 3)
    module(x).sum().backward()
    once = gradient.clone()
    module(x).sum().backward()
    torch.testing.assert_close(gradient, 2 * once)
    assert once.any()


def _attach_as_parameters(module: nn.Module, layout: FlatLayout, flat: torch.Tensor) -> None:
    """The obvious way, which rule "One flat buffer" forbids: Parameters made from views."""
    for span, view in layout.views(flat):
        path, _, name = span.name.rpartition(".")
        setattr(module.get_submodule(path), name, nn.Parameter(view))


@pytest.mark.parametrize("way", ["a step of the flat buffer", "another worker's optimizer", "a sync"])
def test_a_step_between_forward_and_backward(way: str) -> None:
    """Another worker steps while this one is between forward and backward; the control raises."""
    template = _two_layers()
    layout = FlatLayout(template)
    flat = layout.gather(template)
    step = (
        SharedOptimizer(TrainerSection(optimizer="sgd", lr=0.1), flat).for_worker(torch.ones_like(flat)).step
    )

    def disturb() -> None:
        before = flat.clone()
        if way == "a step of the flat buffer":
            flat.add_(0.5)
        elif way == "a sync":
            flat[2:60].add_(torch.ones(58), alpha=-0.5)
        else:
            step()
        assert not torch.equal(flat, before)

    x = torch.randn(4, 3)
    module = copy.deepcopy(template)
    gradient = torch.zeros(layout.numel)
    layout.attach(module, flat, gradient)
    loss = module(x).square().sum()
    disturb()
    loss.backward()
    assert gradient.any()
    control = copy.deepcopy(template)
    _attach_as_parameters(control, layout, flat)
    loss = control(x).square().sum()
    disturb()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_digest_is_of_the_bytes() -> None:
    flat = torch.arange(40, dtype=torch.float32)
    assert digest_of(flat) == hashlib.sha256(np.arange(40, dtype="<f4").tobytes()).hexdigest()
    assert digest_of(flat[::2]) == digest_of(flat[::2].contiguous())
    zeros = torch.zeros(3)
    assert digest_of(zeros) != digest_of(-zeros), "bits, not values"
