"""Parameters as views of one buffer: bit for bit as before, broken ones are noticed, plain at the end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from shadowsync.attached.errors import AttachError
from shadowsync.attached.views import ParameterViews
from shadowsync.tests.support.attached_loops import Task, small_model, weights_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def attached(model: nn.Module) -> tuple[ParameterViews, torch.Tensor]:
    views = ParameterViews(model)
    views.claim()
    flat = torch.zeros(views.layout.numel)
    views.attach(flat)
    return views, flat


@pytest.mark.parametrize(
    "make",
    [
        lambda params: torch.optim.SGD(params, lr=0.1),
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
        lambda params: torch.optim.Adam(params, lr=0.01),
        lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
        lambda params: torch.optim.Adagrad(params, lr=0.1),
    ],
)
def test_training_is_the_same_bit_for_bit(make: Make) -> None:
    """After the optimizer has state, and after the views have gone again; a changed buffer is the control."""
    model, twin = small_model(), small_model()
    optimizer, other = make(model.parameters()), make(twin.parameters())
    task, same = Task(1), Task(1)

    def both(steps: int) -> None:
        for _ in range(steps):
            assert task.step(model, optimizer) == same.step(twin, other)

    both(3)
    views, flat = attached(model)
    both(5)
    assert torch.equal(weights_of(model), weights_of(twin))
    views.check()
    gathered = torch.cat([view.reshape(-1) for _, view in views.layout.views(flat)])
    assert torch.equal(gathered, weights_of(model))
    views.detach()
    both(3)
    assert torch.equal(weights_of(model), weights_of(twin))
    assert not torch.equal(gathered, weights_of(model))
    # The buffer is nothing to the model any more; while it was, writes came through.
    flat.zero_()
    both(1)
    views, flat = attached(model)
    flat.mul_(1.01)
    assert not torch.equal(weights_of(model), weights_of(twin))
    views.detach()


class NewBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes that operations allocate."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        there = {one.untyped_storage().data_ptr() for one in args if isinstance(one, torch.Tensor)}
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in there:
            self.count += result.untyped_storage().nbytes()
        return result


def test_the_flat_buffer_is_the_only_copy() -> None:
    model = small_model()
    views = ParameterViews(model)
    views.claim()
    flat = torch.zeros(views.layout.numel)
    with NewBytes() as moved:  # type: ignore[no-untyped-call]
        views.attach(flat)
    views.detach()
    with NewBytes() as gathered:  # type: ignore[no-untyped-call]
        views.layout.gather(model)
    assert moved.count == 0
    assert gathered.count == flat.nbytes, "the control"


def test_only_what_is_trainable_has_a_place() -> None:
    model = small_model()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    first: Any = model[0]
    before = first.weight.data_ptr()
    views, _ = attached(model)
    assert [one.name for one in views.shapes] == ["1.weight", "1.bias", "3.weight", "3.bias"]
    assert first.weight.data_ptr() == before
    views.detach()


def test_tied_parameters_stay_tied() -> None:
    one, other = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    other.weight = one.weight
    model = nn.Sequential(one, other)
    views, flat = attached(model)
    flat.fill_(2.0)
    assert torch.equal(other.weight, one.weight)
    assert float(other.weight.detach().sum()) == 18.0
    views.detach()
    assert other.weight is one.weight


def test_names_are_those_of_the_module_inside_a_compiled_one() -> None:
    model = small_model()
    # Named as torch.compile does.
    compiled = nn.Module()
    compiled.add_module("_orig_mod", model)
    assert next(iter(dict(compiled.named_parameters()))) == "_orig_mod.0.weight"
    assert ParameterViews(compiled).shapes == ParameterViews(model).shapes


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        (
            lambda model: model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True),
            r"0\.weight: was replaced by another parameter.*assign=True",
        ),
        (
            lambda model: model[3].load_state_dict(copy.deepcopy(model[3].state_dict()), assign=True),
            r"3\.weight: was replaced",
        ),
        (lambda model: model.double(), r"0\.weight: has its values elsewhere"),
        (lambda model: model[3].double(), r"3\.weight: has its values elsewhere"),
        (lambda model: setattr(model[1], "bias", nn.Parameter(torch.zeros(8))), r"1\.bias: was replaced"),
    ],
)
def test_broken_views_are_noticed(breaks: Callable[[Any], Any], message: str) -> None:
    model = small_model()
    views, _ = attached(model)
    # What keeps them is no fault, the control.
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    model.to(torch.float32).train().eval().zero_grad()
    views.check()
    breaks(model)
    with pytest.raises(AttachError, match=message):
        views.check()
    views.detach()


def test_a_second_attach_is_refused_until_the_first_has_gone() -> None:
    model = small_model()
    views, _ = attached(model)
    part = ParameterViews(model[3])
    with pytest.raises(AttachError, match="weight: is attached already"):
        part.claim()
    views.detach()
    part.claim()
    part.detach()
