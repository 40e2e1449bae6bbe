"""What is refused before a model is attached; nothing is changed here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.optim.lr_scheduler import LRScheduler

from .errors import AttachError

_DEVICES = ("cpu", "cuda")
_TABLES = (nn.Embedding, nn.EmbeddingBag)


def plain_mapping(value: object, where: str) -> dict[str, Any]:
    """Return a mapping by name as a hub takes it: as `plain`.

    Raises AttachError, as it, and for what is no mapping by texts.
    """
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise AttachError(f"{value!r} given", where=where, remedy="give a dict whose keys are names")
    return {name: plain(each, f"{where}.{name}") for name, each in value.items()}


def plain(value: object, where: str) -> Any:
    """Return a setting as a hub takes it: numbers of numpy and torch become Python's.

    Raises AttachError, which names the setting `where`, for what has no form in a message.
    """
    if isinstance(value, np.generic | np.ndarray | torch.Tensor) and value.ndim == 0:
        value = value.item()
    if isinstance(value, Mapping):
        return plain_mapping(value, where)
    if isinstance(value, list | tuple):
        return [plain(each, where) for each in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise AttachError(f"{value!r} given", where=where, remedy="give a number or a text")


def check_choice(value: object, choices: Sequence[str], where: str) -> None:
    """Raise AttachError, which names the argument `where`, for a value that is none of the choices."""
    if value not in choices:
        raise AttachError(f"{value!r} given", where=where, remedy=f"give one of {', '.join(choices)}")


def check_model(module: object, optimizer: object) -> list[torch.optim.Optimizer]:
    """Return the optimizers that step the module, of one or several that were given.

    Raises AttachError, which names the parameter, unless the model can be attached.
    """
    if torch.is_inference_mode_enabled():
        raise AttachError(
            "called in inference mode, in which nothing can be trained",
            where="attach",
            remedy="call it outside of torch.inference_mode(), where the loop trains",
        )
    if not isinstance(module, nn.Module):
        raise AttachError(f"a {type(module).__name__} given; give the torch module that the loop trains")
    optimizers = _optimizers_of(optimizer)
    if not optimizers:
        raise AttachError("no optimizer given", remedy="give the one that the loop steps")
    _check_wrappers(module)
    _check_lazy(module)
    trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not trainable:
        raise AttachError("no parameter requires a gradient, so there is nothing to synchronize")
    for name, parameter in trainable:
        _check_kind(name, parameter)
    _check_devices(trainable)
    _check_memory(trainable)
    _check_optimizers(trainable, optimizers)
    _check_tables(module, trainable)
    return optimizers


def _optimizers_of(argument: object) -> list[torch.optim.Optimizer]:
    """Return the optimizers that step, of one or several: Accelerate and Lightning give wrappers."""
    unwrapped = _unwrapped(argument)
    several = isinstance(argument, Iterable) and not isinstance(argument, str | Mapping | nn.Module | type)
    if isinstance(unwrapped, torch.optim.Optimizer):
        optimizers: list[object] = [unwrapped]
    else:
        optimizers = [*argument] if several else [argument]  # type: ignore[misc]
    return [_require_optimizer(_unwrapped(each)) for each in optimizers]


def _require_optimizer(optimizer: object) -> torch.optim.Optimizer:
    if isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    if isinstance(optimizer, type):
        raise AttachError(
            f"the class {optimizer.__name__} given, not an optimizer",
            where="optimizer",
            remedy=f"make one: {optimizer.__name__}(model.parameters(), ...); the loop has to step that one",
        )
    raise AttachError(
        f"a {type(optimizer).__name__} given as optimizer",
        where="optimizer",
        remedy="give a torch.optim.Optimizer, or a list of them",
    )


def _unwrapped(optimizer: object) -> object:
    inner = getattr(optimizer, "optimizer", None)
    is_wrapper = isinstance(inner, torch.optim.Optimizer) and not isinstance(optimizer, LRScheduler)
    return _unwrapped(inner) if is_wrapper else optimizer


def _check_wrappers(module: nn.Module) -> None:
    for name, part in module.named_modules():
        kind = type(part)
        if kind.__module__.startswith("torch.nn.parallel"):
            raise AttachError(
                f"{kind.__name__} given; it already makes its replicas equal in every step",
                where=name,
                remedy="attach the module itself, and let each process have its own",
            )
        if kind.__module__.startswith("torch.distributed.fsdp"):
            raise AttachError(
                f"{kind.__name__} given; sharded parameters cannot be attached yet",
                where=name,
                remedy="use a process for each replica, with the whole model in it",
            )


def _check_lazy(module: nn.Module) -> None:
    tensors: Iterator[tuple[str, object]] = iter([*module.named_parameters(), *module.named_buffers()])
    for name, tensor in tensors:
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise AttachError(
                "is lazy, and has no shape yet",
                where=name,
                remedy="run the model once on a batch, then attach",
            )


def _check_kind(name: str, parameter: nn.Parameter) -> None:
    kind = type(parameter.data)
    if kind.__name__ == "DTensor":
        raise AttachError(
            "is sharded (a DTensor), which cannot be attached yet",
            where=name,
            remedy="use a process for each replica, with the whole model in it",
        )
    if parameter.is_quantized or kind is not torch.Tensor:
        raise AttachError(
            f"is quantized, or another kind of tensor ({kind.__name__}); only plain float32 is synchronized",
            where=name,
            remedy="freeze it (requires_grad_(False)), then it is never sent",
        )
    if parameter.is_inference():
        raise AttachError(
            "was made in inference mode, and cannot be trained",
            where=name,
            remedy="make or load the model outside of torch.inference_mode()",
        )
    if parameter.is_meta:
        raise AttachError("is on the meta device, and has no values", where=name, remedy="load it first")
    if parameter.dtype != torch.float32:
        raise AttachError(
            f"is {str(parameter.dtype).removeprefix('torch.')}; only float32 is synchronized yet",
            where=name,
            remedy="keep float32 parameters and use torch.autocast, or freeze it",
        )
    if parameter.layout != torch.strided:
        raise AttachError(
            f"is {str(parameter.layout).removeprefix('torch.')}; only dense parameters are synchronized",
            where=name,
        )


def _check_devices(trainable: Sequence[tuple[str, nn.Parameter]]) -> None:
    first, parameter = trainable[0]
    device = parameter.device
    if device.type not in _DEVICES:
        raise AttachError(f"is on {device}; only the CPU and CUDA can be attached yet", where=first)
    for name, other in trainable:
        if other.device != device:
            raise AttachError(
                f"is on {other.device}, and {first} on {device}; several devices cannot be attached",
                where=name,
                remedy="move the whole model to one device before attach",
            )


def _check_memory(trainable: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Refuse two parameters in one place, which a round would change twice."""
    names: dict[int, str] = {}
    for name, parameter in trainable:
        first = names.setdefault(parameter.data_ptr(), name) if parameter.numel() else name
        if first != name:
            raise AttachError(
                f"has its values in the memory of {first}, and is another parameter",
                where=name,
                remedy="tie them as one parameter: decoder.weight = encoder.weight, not their .data",
            )


def _check_optimizers(
    trainable: Sequence[tuple[str, nn.Parameter]], optimizers: Sequence[torch.optim.Optimizer]
) -> None:
    stepped = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    ours, theirs = {id(p) for _, p in trainable}, {id(p) for p in stepped}
    for name, parameter in trainable:
        if id(parameter) not in theirs:
            raise AttachError(
                "is trainable and in no optimizer that was given",
                where=name,
                remedy="give all optimizers as a list, or freeze it",
            )
    for parameter in stepped:
        if parameter.requires_grad and id(parameter) not in ours:
            raise AttachError(
                f"an optimizer has a parameter of shape {tuple(parameter.shape)} that is not in the module,"
                " and would not be synchronized",
                remedy="attach a module that contains it",
            )


def _check_tables(module: nn.Module, trainable: Sequence[tuple[str, nn.Parameter]]) -> None:
    names = {id(parameter): name for name, parameter in trainable}
    tables = {
        names[id(part.weight)]: part.weight.numel()
        for part in module.modules()
        if isinstance(part, _TABLES) and id(part.weight) in names
    }
    total = sum(parameter.numel() for _, parameter in trainable)
    if 2 * sum(tables.values()) > total:
        raise AttachError(
            f"embedding tables are {100 * sum(tables.values()) / total:.0f}% of the trainable bytes, which"
            " each round would send",
            where=", ".join(list(tables)[:3]),
            remedy="freeze them, or train them on embedding nodes: shadowsync.Embeddings, or a job",
        )
