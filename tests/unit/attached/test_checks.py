"""What attach refuses, by name, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import shadowsync
import torch
from shadowsync.attached.checks import check_model, plain
from shadowsync.attached.errors import AttachError
from torch import nn
from torch.nn.parallel import DataParallel


def _sgd(*modules: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD([p for one in modules for p in one.parameters()], lr=0.1)]


class _Coded(torch.Tensor):
    """A kind of tensor of its own, as libraries of quantized weights have."""


class DTensor(torch.Tensor):
    """By its name a tensor of torch.distributed, which needs processes."""


def _line(weight: torch.Tensor | None = None) -> nn.Linear:
    model = nn.Linear(2, 2)
    if weight is not None:
        model.weight = nn.Parameter(weight)
    return model


def _one_memory() -> nn.Module:
    first, second = _line(), _line()
    second.weight.data = first.weight.data
    return nn.Sequential(first, second)


def _inference() -> nn.Module:
    with torch.inference_mode():
        return _line()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Sequential(_line(), _line().to(torch.bfloat16)), r"1\.weight: is bfloat16; only float32"),
        (lambda: nn.Sequential(_line(), nn.Linear(2, 2, device="meta")), r"1\.weight: is on the meta device"),
        (
            lambda: _line(torch.zeros(2, 2).as_subclass(_Coded)),
            r"weight: is quantized, or another kind of tensor \(_Coded\)",
        ),
        (lambda: _line(torch.zeros(2, 2).as_subclass(DTensor)), r"weight: is sharded \(a DTensor\)"),
        (lambda: _line(torch.zeros(2, 2).to_sparse()), r"weight: is sparse_coo"),
        (lambda: _line().requires_grad_(False), "no parameter requires a gradient"),
        (
            lambda: nn.Sequential(nn.EmbeddingBag(100, 4), nn.Linear(4, 1)),
            r"0\.weight: embedding tables are 99% .*shadowsync\.Embeddings",
        ),
        (lambda: DataParallel(_line()), "DataParallel given; it already makes its replicas equal"),
        (_one_memory, r"1\.weight: has its values in the memory of 0\.weight"),
        (_inference, r"weight: was made in inference mode"),
    ],
)
def test_a_module_that_is_refused(make: Callable[[], nn.Module], message: str) -> None:
    model = make()
    with pytest.raises(AttachError, match=message) as raised:
        check_model(model, _sgd(model))
    assert raised.value.exit_code == 2


MODEL = _line()


@pytest.mark.parametrize(
    ("model", "optimizers", "message"),
    [
        (MODEL, [], "no optimizer given"),
        (MODEL, torch.optim.SGD, r"optimizer: the class SGD given.*SGD\(model\.param"),
        (MODEL, [torch.optim.Adam], "optimizer: the class Adam given"),
        (MODEL, {"all": 1}, "a dict given as optimizer"),
        (MODEL, None, "a NoneType given as optimizer"),
        (MODEL, lambda p: torch.optim.SGD(p, 0.1), "a function given as optimizer"),
        (MODEL, torch.optim.lr_scheduler.StepLR(_sgd(MODEL)[0], 1), "a StepLR given as optimizer"),
        (MODEL, ["sgd"], r"a str given as optimizer; give a torch\.optim\.Optimizer"),
        (
            *(MODEL, _sgd(MODEL, nn.Linear(3, 1))),
            r"an optimizer has a parameter of shape \(1, 3\) that is not in the module",
        ),
        (nn.Sequential(MODEL, _line()), _sgd(MODEL), r"1\.weight: is trainable and in no optimizer"),
        (nn.Sequential(MODEL, nn.LazyLinear(2)), _sgd(MODEL), r"1\.weight: is lazy, and has no shape yet"),
        ("model", [], "a str given; give the torch module"),
    ],
)
def test_optimizers_that_are_refused(model: Any, optimizers: Any, message: str) -> None:
    with pytest.raises(AttachError, match=message) as raised:
        check_model(model, optimizers)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("frozen", ["bfloat16", "lora"])
def test_frozen_parameters_may_be_anything(frozen: str) -> None:
    base = nn.Linear(4, 4, bias=False)
    model = nn.Sequential(base.to(torch.bfloat16) if frozen == "bfloat16" else base, nn.Linear(4, 2))
    base.requires_grad_(False)
    check_model(model, _sgd(model[1]))
    base.requires_grad_(True)
    with pytest.raises(AttachError, match=r"0\.weight"):
        check_model(model, _sgd(model[1]))


def test_small_tables_are_taken() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 40))
    check_model(model, _sgd(model))


def test_optimizers_may_share_a_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    check_model(model, [*_sgd(model[0]), *_sgd(model[1])])


def test_inference_mode_is_refused_and_no_grad_is_not() -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        check_model(model, _sgd(model))
    with torch.inference_mode(), pytest.raises(AttachError, match="called in inference mode"):
        check_model(model, _sgd(model))


def test_one_optimizer_several_and_wrappers_are_taken() -> None:
    model = nn.Linear(2, 2)
    (own,) = _sgd(model)
    wrapper = type("Wrapper", (), {"optimizer": own})()
    for given in (own, [own], (own,), iter([own]), wrapper, [wrapper]):
        assert check_model(model, given) == [own]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"start": "Cluster"}, "start: 'Cluster' given; give one of cluster, mine"),
        ({"on_lost": "Raise"}, "on_lost: 'Raise' given; give one of go_on, raise"),
        ({"gap": np.zeros(2)}, r"gap: array\(.*given; give a number or a text"),
        ({"options": {1: 2}}, r"options: \{1: 2\} given; give a dict whose keys are names"),
        ({"options": {"rate": {"a": object}}}, r"options\.rate\.a: <class 'object'> given"),
        ({"options": 5}, "options: 5 given; give a dict"),
        ({"codecs": ["int8"]}, r"codecs: \['int8'\] given; give a dict"),
    ],
)
def test_arguments_that_no_hub_could_be_told_are_refused(given: dict[str, Any], message: str) -> None:
    model = _line()
    with pytest.raises(AttachError, match=message):
        shadowsync.attach(model, _sgd(model), join="tcp://127.0.0.1:1", timeout_seconds=0.1, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tables": [("user", 10)]}, "tables: .* given; give a dict"),
        ({"tables": {1: 10}}, r"tables: \{1: 10\} given; give a dict whose keys are names"),
        ({"tables": {"user": 10}, "dim": {1: 3}}, r"dim: \{1: 3\} given; give a dict"),
        ({"tables": {"user": 10}, "lr": object}, r"Embeddings\.lr: <class 'object'> given"),
    ],
)
def test_tables_that_no_hub_could_be_told_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(AttachError, match=message):
        shadowsync.Embeddings(join="tcp://127.0.0.1:1", timeout_seconds=0.1, **given)


def test_numbers_of_numpy_and_torch_become_those_of_python() -> None:
    given = {"a": np.int64(3), "b": [np.float32(0.5), torch.tensor(2)], "c": {"d": np.bool_(True)}, "e": None}
    found = plain(given, "options")
    assert found == {"a": 3, "b": [0.5, 2], "c": {"d": True}, "e": None}
    assert [type(each) for each in (found["a"], *found["b"], found["c"]["d"])] == [int, float, int, bool]
