"""A worker's bfloat16 matrices against autocast's own casts."""

from __future__ import annotations

import copy

import torch
from shadowsync.pipeline.models.training.flat import BFloat16Weights, FlatLayout
from torch import nn


class _Branches(nn.Module):
    """Linear layers, a vector that autocast leaves alone, and a branch that may be left out; and matrices
    that autocast does not round before they are used: in a norm, in a bilinear form, looked up, and
    multiplied by elements."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm([8, 1])
        self.bilinear = nn.Bilinear(8, 8, 8)
        self.places = nn.Embedding(3, 8)
        self.gain = nn.Parameter(torch.full((1, 8), 1.001))
        self.first = nn.Linear(5, 8)
        self.scale = nn.Parameter(torch.full((8,), 1.001))
        self.last = nn.Linear(8, 1)
        self.spare = nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor, *, spare: bool = False) -> torch.Tensor:
        """[B] from [B, 5]."""
        hidden = torch.relu(self.first(inputs)) * self.scale * self.gain
        hidden = self.norm(hidden.unsqueeze(2)).squeeze(2)
        hidden = hidden + self.places(torch.arange(len(inputs)) % 3)
        hidden = hidden + self.bilinear(hidden.float(), hidden.float())
        result: torch.Tensor = (self.spare if spare else self.last)(hidden)
        return result.squeeze(1)


def _made() -> tuple[_Branches, FlatLayout, torch.Tensor]:
    torch.manual_seed(3)
    module = _Branches()
    layout = FlatLayout(module)
    return module, layout, layout.gather(module)


def _gradient(module: nn.Module, inputs: torch.Tensor, **options: bool) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = module(inputs, **options)
    result.float().square().sum().backward()


def test_gradients_are_those_of_autocast() -> None:
    template, layout, flat = _made()
    plain, rounded = copy.deepcopy(template), copy.deepcopy(template)
    wanted, got = torch.zeros_like(flat), torch.zeros_like(flat)
    layout.attach(plain, flat, wanted)
    matrices = BFloat16Weights(layout, rounded, flat, got)
    inputs = torch.randn(32, 5)
    for _ in range(3):
        wanted.zero_()
        _gradient(plain, inputs)
        matrices.refresh()
        matrices.clear()
        _gradient(rounded, inputs)
        matrices.collect()
        assert wanted.abs().max() > 0
        assert torch.equal(got, wanted)
        flat.add_(wanted, alpha=-0.01)


def test_a_step_sees_the_replica_of_its_refresh() -> None:
    template, layout, flat = _made()
    gradient = torch.zeros_like(flat)
    matrices = BFloat16Weights(layout, template, flat, gradient)
    matrices.refresh()
    with torch.no_grad():
        before = template.first.weight.clone()
        flat.mul_(2.0)
        assert torch.equal(template.first.weight, before), "the replica moved, the step's copy did not"
        matrices.refresh()
        assert torch.equal(template.first.weight, before * 2), "the next step's is new"


def test_vectors_are_the_replicas_own_in_float32() -> None:
    template, layout, flat = _made()
    BFloat16Weights(layout, template, flat, torch.zeros_like(flat))
    assert template.first.weight.dtype == torch.bfloat16
    alone = (template.scale, template.first.bias, template.gain, template.places.weight, template.norm.weight)
    assert {parameter.dtype for parameter in alone} == {torch.float32}
    flat.fill_(0.3)
    assert torch.equal(template.scale, torch.full((8,), 0.3))


def test_what_a_step_does_not_use_has_no_gradient_of_the_step_before() -> None:
    template, layout, flat = _made()
    gradient = torch.zeros_like(flat)
    matrices = BFloat16Weights(layout, template, flat, gradient)
    spans = {span.name: span for span in layout.spans}
    span = spans["spare.weight"]
    for spare in (True, False):
        matrices.refresh()
        matrices.clear()
        _gradient(template, torch.randn(4, 5), spare=spare)
        matrices.collect()
        moved = gradient[span.start : span.start + span.numel].abs().max() > 0
        assert bool(moved) == spare


def test_a_weight_that_two_modules_share_stays_float32() -> None:
    shared = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    shared[1].weight = shared[0].weight
    layout = FlatLayout(shared)
    flat = layout.gather(shared)
    BFloat16Weights(layout, shared, flat, torch.zeros_like(flat))
    assert shared[0].weight.dtype == torch.float32
    assert shared[2].weight.dtype == torch.bfloat16, "the control"
