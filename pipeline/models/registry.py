"""The dense models by name, and the user's own.

The contract of a model of one's own, `model.name = "package.module:Class"`:

    class MyModel(torch.nn.Module):
        def __init__(self, dense_features: int, embedding_dims: list[int], **options): ...
        def forward(self, dense, embeddings):
            # dense: float32 [B, D]; embeddings: a list of T tensors, float32 [B, K_t]
            # -> logits, float32 [B]

`options` are the keys of `model.options`. Parameters are float32; `__init__` may draw random numbers, from
torch's own generator only, which is seeded from `run.seed` so that every trainer starts from the same
weights. Several workers run `forward` on modules of their own whose parameters share memory, so a module
keeps no state between calls but its parameters (no batch normalization).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..config.job import Job
from ..errors import JobFileError
from .dlrm import DLRM

MODELS: dict[str, type[nn.Module]] = {"dlrm": DLRM}


def build_model(job: Job) -> nn.Module:
    """The job's dense model with its first weights, drawn from `run.seed`.

    Raises:
        JobFileError: the name is unknown, cannot be imported, or the class cannot be made or is unfit.
    """
    arguments: dict[str, Any] = dict(job.model.options)
    if job.model.name == "dlrm":
        for key in ("bottom", "top"):
            if key in arguments:
                raise JobFileError(
                    "dlrm takes no such option", where=f"model.options.{key}", remedy=f"write model.{key}"
                )
        arguments |= {"bottom": job.model.bottom, "top": job.model.top}
    maker = find_model(job.model.name)
    dims = [job.model.embedding_dim] * job.data.categorical_features
    try:
        inspect.signature(maker).bind(job.data.dense_features, dims, **arguments)
    except TypeError as error:
        raise JobFileError(
            f"{job.model.name} cannot be made with (dense_features, embedding_dims, "
            f"{', '.join(arguments) or 'no options'}): {error}",
            where="model.options",
        ) from error
    generator = torch.random.get_rng_state()
    try:
        torch.manual_seed(job.run.seed)
        module = maker(job.data.dense_features, dims, **arguments)
    except Exception as error:
        raise JobFileError(
            f"{job.model.name} cannot be made: {type(error).__name__}: {error}", where="model"
        ) from error
    finally:
        torch.random.set_rng_state(generator)
    _check_contract(job, module)
    return module


def find_model(name: str) -> Callable[..., nn.Module]:
    """The class of a model's name; raises JobFileError naming what there is."""
    if name in MODELS:
        return MODELS[name]
    if ":" not in name:
        raise JobFileError(
            f"{name!r} given; there are: {', '.join(sorted(MODELS))}, or package.module:Class",
            where="model.name",
        )
    module_name, _, class_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:
        raise JobFileError(
            f"{name!r} cannot be imported ({type(error).__name__}: {error})",
            where="model.name",
            remedy="install the package that holds it, or set PYTHONPATH to its folder",
        ) from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise JobFileError(f"{name!r} is no torch.nn.Module class", where="model.name")
    return found


def _check_contract(job: Job, module: nn.Module) -> None:
    if not any(True for _ in module.parameters()):
        raise JobFileError(f"{job.model.name} has no parameters", where="model.name")
    wrong = [name for name, parameter in module.named_parameters() if parameter.dtype != torch.float32]
    if wrong:
        raise JobFileError(
            f"{job.model.name} has a parameter {wrong[0]} of {module.get_parameter(wrong[0]).dtype}",
            where="model.name",
            remedy="make it float32",
        )
    dense = torch.zeros(2, job.data.dense_features)
    shape = (2, job.model.embedding_dim)
    embeddings = [torch.zeros(shape) for _ in range(job.data.categorical_features)]
    try:
        with torch.no_grad():
            logits = module(dense, embeddings)
    except Exception as error:
        raise JobFileError(
            f"{job.model.name}.forward failed on a batch of 2 zeros: {type(error).__name__}: {error}",
            where="model.name",
            remedy="forward(dense [B, D], embeddings: list of T [B, K]) gives logits [B]",
        ) from error
    if not isinstance(logits, torch.Tensor) or logits.shape != (2,) or logits.dtype != torch.float32:
        tensor = isinstance(logits, torch.Tensor)
        given = f"{logits.dtype} {list(logits.shape)}" if tensor else type(logits).__name__
        raise JobFileError(
            f"{job.model.name}.forward gave {given} for a batch of 2",
            where="model.name",
            remedy="give float32 logits [B]",
        )
