"""What attach refuses, by name, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from shadowsync.attached.checks import check_model
from shadowsync.attached.errors import AttachError
from torch import nn
from torch.nn.parallel import DataParallel

Made = tuple[nn.Module, Sequence[torch.optim.Optimizer]]


def _sgd(*modules: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD([p for one in modules for p in one.parameters()], lr=0.1)]


def _half() -> Made:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to(torch.bfloat16))
    return model, _sgd(model)


def _lazy() -> Made:
    model = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2))
    return model, _sgd(model[0])


def _meta() -> Made:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    return model, _sgd(model)


class _Coded(torch.Tensor):
    """A kind of tensor of its own, as libraries of quantized weights have."""


class DTensor(torch.Tensor):
    """By its name a tensor of torch.distributed, which needs processes."""


def _of_kind(kind: type[torch.Tensor]) -> Made:
    model = nn.Linear(2, 2)
    model.weight = nn.Parameter(torch.zeros(2, 2).as_subclass(kind))
    return model, _sgd(model)


def _frozen() -> Made:
    model = nn.Linear(2, 2).requires_grad_(False)
    return model, _sgd(model)


def _forgotten() -> Made:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    return model, _sgd(model[0])


def _foreign() -> Made:
    model = nn.Linear(2, 2)
    return model, _sgd(model, nn.Linear(3, 1))


def _tables() -> Made:
    model = nn.Sequential(nn.EmbeddingBag(100, 4), nn.Linear(4, 1))
    return model, _sgd(model)


def _wrapped() -> Made:
    model = DataParallel(nn.Linear(2, 2))
    return model, _sgd(model)


def _sparse() -> Made:
    model = nn.Linear(2, 2)
    model.weight = nn.Parameter(torch.zeros(2, 2).to_sparse())
    return model, _sgd(model)


def _one_memory() -> Made:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    other: Any = model[1]
    other.weight.data = model[0].weight.data
    return model, _sgd(model)


def _inference() -> Made:
    with torch.inference_mode():
        model = nn.Linear(2, 2)
    return model, _sgd(model)


def _scheduled() -> Any:
    model = nn.Linear(2, 2)
    return model, torch.optim.lr_scheduler.StepLR(_sgd(model)[0], 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_half, r"1\.weight: is bfloat16; only float32"),
        (_lazy, r"1\.weight: is lazy, and has no shape yet"),
        (_meta, r"1\.weight: is on the meta device"),
        (lambda: _of_kind(_Coded), r"weight: is quantized, or another kind of tensor \(_Coded\)"),
        (lambda: _of_kind(DTensor), r"weight: is sharded \(a DTensor\)"),
        (_frozen, "no parameter requires a gradient"),
        (_forgotten, r"1\.weight: is trainable and in no optimizer"),
        (_foreign, r"an optimizer has a parameter of shape \(1, 3\) that is not in the module"),
        (_tables, r"0\.weight: embedding tables are 99% .*shadowsync\.Embeddings"),
        (_wrapped, "DataParallel given; it already makes its replicas equal"),
        (_sparse, r"weight: is sparse_coo"),
        (_one_memory, r"1\.weight: has its values in the memory of 0\.weight"),
        (_inference, r"weight: was made in inference mode"),
        (lambda: (nn.Linear(2, 2), []), "no optimizer given"),
        (lambda: (nn.Linear(2, 2), torch.optim.SGD), r"optimizer: the class SGD given.*SGD\(model\.param"),
        (lambda: (nn.Linear(2, 2), [torch.optim.Adam]), "optimizer: the class Adam given"),
        (lambda: (nn.Linear(2, 2), {"all": 1}), "a dict given as optimizer"),
        (lambda: (nn.Linear(2, 2), None), "a NoneType given as optimizer"),
        (lambda: (nn.Linear(2, 2), lambda p: torch.optim.SGD(p, 0.1)), "a function given as optimizer"),
        (_scheduled, "a StepLR given as optimizer"),
        (lambda: ("model", []), "a str given; give the torch module"),
        (lambda: (nn.Linear(2, 2), ["sgd"]), r"a str given as optimizer; give a torch\.optim\.Optimizer"),
    ],
)
def test_refused(make: Callable[[], Any], message: str) -> None:
    model, optimizers = make()
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
