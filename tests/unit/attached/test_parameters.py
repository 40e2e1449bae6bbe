"""Parameters where they are: bit for bit as before, and what is not synchronized any more is noticed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.attached.errors import AttachError
from shadowsync.attached.parameters import LoopParameters
from shadowsync.nodes.replica.buffer import FlatReplica
from shadowsync.tests.support.loops.attached_loops import Task, small_model, weights_of
from torch import nn

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


_MADE: list[LoopParameters] = []


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    yield
    for one in _MADE:
        one.release()
    _MADE.clear()


def attached(model: nn.Module) -> tuple[LoopParameters, FlatReplica]:
    parameters = LoopParameters(model)
    parameters.claim()
    _MADE.append(parameters)
    return parameters, FlatReplica(parameters.buffer, np.zeros(1, np.int64))


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
    """After the optimizer has state, and after the end; a round is the control."""
    model, twin = small_model(), small_model()
    optimizer, other = make(model.parameters()), make(twin.parameters())
    task, same = Task(1), Task(1)

    def both(steps: int) -> None:
        for _ in range(steps):
            assert task.step(model, optimizer) == same.step(twin, other)

    both(3)
    parameters, replica = attached(model)
    both(5)
    assert torch.equal(weights_of(model), weights_of(twin))
    assert not parameters.check()
    values = replica.snapshot(replica.whole)
    gathered = torch.cat([view.reshape(-1) for _, view in parameters.layout.views(values)])
    assert torch.equal(gathered, weights_of(model))
    parameters.release()
    both(3)
    assert torch.equal(weights_of(model), weights_of(twin))
    assert not torch.equal(gathered, weights_of(model))
    replica.add_(replica.whole, torch.ones(replica.numel), 0.01)
    assert not torch.equal(weights_of(model), weights_of(twin))


def test_only_what_is_trainable_has_a_place() -> None:
    model = small_model()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    before = [p.data_ptr() for p in model.parameters()]
    parameters, replica = attached(model)
    assert [one.name for one in parameters.shapes] == ["1.weight", "1.bias", "3.weight", "3.bias"]
    replica.interpolate_(replica.whole, torch.ones(replica.numel), 1.0)
    assert [bool((p == 1.0).all()) for p in model.parameters()] == [False, False, True, True, True, True]
    assert [p.data_ptr() for p in model.parameters()] == before
    parameters.release()


def test_tied_parameters_stay_tied() -> None:
    one, other = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    other.weight = one.weight
    model = nn.Sequential(one, other)
    _, replica = attached(model)
    replica.interpolate_(replica.whole, torch.full((replica.numel,), 2.0), 1.0)
    assert other.weight is one.weight
    assert float(other.weight.detach().sum()) == 18.0


def test_names_are_those_of_the_module_inside_a_compiled_one() -> None:
    model = small_model()
    # Named as torch.compile does.
    compiled = nn.Module()
    compiled.add_module("_orig_mod", model)
    assert next(iter(dict(compiled.named_parameters()))) == "_orig_mod.0.weight"
    assert LoopParameters(compiled).shapes == LoopParameters(model).shapes


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        (
            lambda model: model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True),
            r"0\.weight: was replaced since attach.*assign=True",
        ),
        (
            lambda model: model[3].load_state_dict(copy.deepcopy(model[3].state_dict()), assign=True),
            r"3\.weight: was replaced",
        ),
        (lambda model: model.double(), r"0\.weight: is now float64"),
        (lambda model: model[3].half(), r"3\.weight: is now float16"),
        (lambda model: setattr(model[3].bias, "data", torch.zeros(2)), r"3\.bias: is now float32 \[2\]"),
        (lambda model: setattr(model[1], "bias", nn.Parameter(torch.zeros(8))), r"1\.bias: was replaced"),
        (lambda model: setattr(model, "3", nn.Linear(8, 1)), r"3: was replaced"),
        (lambda model: nn.utils.parametrizations.weight_norm(model[0]), r"0\.weight: was replaced"),
    ],
)
def test_what_is_not_synchronized_any_more_is_noticed(breaks: Callable[[Any], Any], message: str) -> None:
    model = small_model()
    parameters, _ = attached(model)
    # What keeps the parameters is no fault, the control.
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    model.to(torch.float32).train().eval().zero_grad()
    assert not parameters.check()
    model.double().float()
    model[3].bias.data = torch.zeros(1)
    assert parameters.check()
    assert not parameters.check()
    breaks(model)
    with pytest.raises(AttachError, match=message):
        parameters.check()


def test_a_second_attach_is_refused_until_the_first_has_gone() -> None:
    model = small_model()
    parameters, _ = attached(model)
    part = LoopParameters(model[3])
    with pytest.raises(AttachError, match="weight: is attached already"):
        part.claim()
    # The refused one has nothing to release.
    part.release()
    with pytest.raises(AttachError, match="weight: is attached already"):
        part.claim()
    parameters.release()
    part.claim()
    part.release()
