"""The flat optimizers against torch's own, where parameters are frozen or not used by each batch."""

from __future__ import annotations

import copy
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.pipeline.config.trainer import TrainerSection
from shadowsync.pipeline.models.training.constants import Constants
from shadowsync.pipeline.models.training.flat import BFloat16Weights, FlatLayout, GradientWatch
from shadowsync.pipeline.models.training.optimizers import SharedOptimizer
from torch import nn

from .conftest import TORCH

Name = Literal["sgd", "adagrad", "adam", "adamw"]
Batch = tuple[bool, bool, bool]
LR = 0.05


class Experts(nn.Module):
    """Experts of which a batch uses some; frozen parameters, a buffer and a shared weight between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.frozen = nn.Linear(3, 5).requires_grad_(False)
        self.register_buffer("places", torch.arange(5.0))
        self.table = nn.Embedding(4, 5, sparse=True)
        self.second = nn.Linear(3, 5)
        self.second.weight.requires_grad_(False)
        self.tied = nn.Linear(3, 5)
        self.tied.bias = self.first.bias
        self.last = nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor, uses: Batch) -> torch.Tensor:
        out = self.frozen(x) * self.last + self.places
        if uses[0]:
            out = out + self.first(x)
        if uses[1]:
            out = out + self.tied(x) * self.second(x)
        if uses[2]:
            out = out + self.table(torch.tensor([1, 3, 1]))
        loss: torch.Tensor = out.square().mean()
        return loss


def by_torch(module: nn.Module, name: Name, decay: float, batches: list[Batch], x: torch.Tensor) -> None:
    """Each group with parameters of its own, as frozen ones are given too."""
    parameters = list(module.parameters())
    groups = [{"params": parameters[:3]}, {"params": parameters[3:]}]
    optimizer = TORCH[name](groups, lr=LR, weight_decay=decay)
    for uses in batches:
        optimizer.zero_grad(set_to_none=True)
        module(x, uses).backward()
        for parameter in parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        optimizer.step()


def by_flat(
    module: nn.Module, name: Name, decay: float, batches: list[Batch], x: torch.Tensor, *, on_device: bool
) -> SharedOptimizer:
    """By two workers in turn; as on a device, with a batch that is not finite between two others."""
    layout, constants = FlatLayout(module), Constants(module, lambda values: values)
    flat = layout.gather(module)
    settings = TrainerSection(optimizer=name, lr=LR, weight_decay=decay)
    shared = SharedOptimizer(settings, flat, spans=layout.spans)
    workers = []
    for _ in range(2):
        own, gradient = copy.deepcopy(module), torch.zeros(layout.numel)
        constants.attach(own)
        layout.attach(own, flat, gradient)
        workers.append((own, gradient, GradientWatch(layout, own), shared.for_worker(gradient)))
    for at, uses in enumerate(batches):
        own, gradient, watch, optimizer = workers[at % 2]
        for bad in [True, False] if on_device and at == 1 else [False]:
            gradient.zero_()
            own(x, uses).backward()
            if bad:
                gradient.fill_(torch.nan)
            optimizer.step(1.0, torch.tensor(bad) if on_device else None, watch.used())
    layout.attach(module, flat)
    return shared


ALL: Batch = (True, True, True)
USES = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=8)


@pytest.mark.parametrize("on_device", [False, True], ids=["fused", "as on a device"])
@pytest.mark.parametrize("name", TORCH)
@settings(max_examples=20)
@given(batches=USES, decay=st.sampled_from([0.0, 0.3]))
def test_parameters_move_as_torchs_own_do(
    name: Name, on_device: bool, batches: list[Batch], decay: float
) -> None:
    torch.manual_seed(3)
    wanted, x = Experts(), torch.randn(3, 3)
    found = copy.deepcopy(wanted)
    by_torch(wanted, name, decay, batches, x)
    by_flat(found, name, decay, batches, x, on_device=on_device)
    for (key, value), own in zip(wanted.named_parameters(), found.parameters(), strict=True):
        np.testing.assert_allclose(own.detach(), value.detach(), rtol=2e-5, atol=2e-6, err_msg=key)
    assert found.frozen.weight.equal(wanted.frozen.weight)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_a_parameter_that_is_used_late_begins_with_its_first_step(name: Name) -> None:
    """Also if the state was put back between; the control lacks the counts."""
    torch.manual_seed(3)
    wanted, x = Experts(), torch.randn(3, 3)
    batches = [(True, False, False)] * 6 + [ALL] * 2
    found, without = copy.deepcopy(wanted), copy.deepcopy(wanted)
    by_torch(wanted, name, 0.1, batches, x)
    ends = []
    for module, counts in [(found, True), (without, False)]:
        first = by_flat(module, name, 0.1, batches[:6], x, on_device=False)
        layout = FlatLayout(module)
        flat, gradient = layout.gather(module), torch.zeros(layout.numel)
        settings = TrainerSection(optimizer=name, lr=LR, weight_decay=0.1)
        again = SharedOptimizer(settings, flat, spans=layout.spans)
        for key, value in first.state.items():
            if counts or key != "missed":
                again.state[key].copy_(value)
        again.restored()
        layout.attach(module, flat, gradient)
        watch, optimizer = GradientWatch(layout, module), again.for_worker(gradient)
        for uses in batches[6:]:
            gradient.zero_()
            module(x, uses).backward()
            optimizer.step(used=watch.used())
        pairs = zip(module.parameters(), wanted.parameters(), strict=True)
        ends.append(max(float((own - other).detach().abs().max()) for own, other in pairs))
    assert ends[0] < 2e-5
    assert ends[1] > 1e-3


def test_a_batch_that_uses_all_says_so() -> None:
    """Also where its gradients are zeros; and with weights that are rounded."""
    torch.manual_seed(3)
    module, x = Experts(), torch.randn(3, 3)
    layout = FlatLayout(module)
    flat, gradient = layout.gather(module), torch.zeros(layout.numel)
    rounded = BFloat16Weights(layout, module, flat, gradient)
    watch = GradientWatch(layout, module)
    names = [span.name for span in layout.spans]
    for uses, missing in [
        (ALL, []),
        ((False, True, True), ["first.weight"]),
        ((True, False, True), ["second.bias", "tied.weight"]),
        ((False, False, False), ["first.weight", "first.bias", "table.weight", "second.bias", "tied.weight"]),
        (ALL, []),
    ]:
        rounded.refresh()
        rounded.clear()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = module(0.0 * x, uses)
        (0.0 * loss).backward()
        rounded.collect()
        used = watch.used()
        found = [] if used is None else [name for name, own in zip(names, used, strict=True) if not own]
        assert found == missing
