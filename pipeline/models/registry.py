"""The dense models by name, and custom models.

The contract of a custom model, `model.name = "package.module:Class"` or `"./file.py:Class"`, relative
to the job file:

    class MyModel(torch.nn.Module):
        def __init__(self, dense_features: int, embedding_dims: list[int], **options): ...
        def forward(self, dense, embeddings):
            # dense: float32 [B, D]; embeddings: a list of T tensors, float32 [B, K_t]
            # -> logits, float32 [B]; [B, T] for a job with T labels, in the order of data.columns

`options` are the keys of `model.options`. Parameters are float32; `__init__` may draw random numbers, from
the own generators of torch, NumPy and Python only, which are seeded from `run.seed` so that every trainer
starts from the same weights. Each worker runs `forward` on its own module, and the modules' parameters share
memory. So a module must keep no state between calls except its parameters (no batch normalization); see
`state_check`. Buffers that forward only reads, and frozen parameters, are the same everywhere.

For a job with several labels, an argument `tasks` of `__init__` gets their number.
A model that takes sequences, columns with pooling = "none", says so by `takes_sequences = True` in its class.
`__init__` then also gets the keyword `inputs`, a `sequences.ModelInput` (name, dim, longest) for each entry
of `embeddings`. The entry of such a column is a `sequences.EmbeddedSequence`: `vectors`, float32 [B, L, K],
`lengths`, int64 [B], and `mask()`, bool [B, L]. The vectors are in the order of the list, with zeros behind
those of a shorter one. With `takes_jagged = True` it is a `sequences.JaggedSequence` instead: `values`,
float32 [N, K], of all lists one behind the other, without padding, and `lengths`. With both the model takes
either, and an exported one gets padded vectors.

A model may have a method `set_output_bias(self, logit: float)`. It is called once, after `__init__`, with the
first value of the logit's bias, see `model.output_bias`; with several labels it gets a list of their values.
It must draw no random numbers. A loss and scores of its own: `own_loss`.
"""

from __future__ import annotations

import inspect
import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from ...class_loader import NoSuchFile, is_file, load_module
from ..config.job import Job
from ..errors import JobFileError
from .built_in.autoint import AutoInt
from .built_in.dcn_v2 import DCNv2
from .built_in.deepfm import DeepFM
from .built_in.din import DIN
from .built_in.dlrm import DLRM
from .built_in.finalmlp import FinalMLP
from .built_in.multi_task import PLE, MMoE, SharedBottom
from .built_in.sequence import SequenceModel, history_of
from .built_in.two_tower import TwoTower, towers_of
from .built_in.wide_deep import WideDeep
from .layers.dense import regularize_
from .layers.sequences import EmbeddedSequence, Embeddings, JaggedSequence, model_inputs_of
from .own.loss import check_own_loss, require_methods, scoring
from .own.metrics import check_own_metrics

_WHERE = "model.name"

MODELS: dict[str, type[nn.Module]] = {
    "autoint": AutoInt,
    "dcn_v2": DCNv2,
    "deepfm": DeepFM,
    "din": DIN,
    "dlrm": DLRM,
    "finalmlp": FinalMLP,
    "mmoe": MMoE,
    "ple": PLE,
    "sequence": SequenceModel,
    "shared_bottom": SharedBottom,
    "two_tower": TwoTower,
    "wide_deep": WideDeep,
}
# The keys of [model] that are arguments of a model, beside its options.
KEYS = {
    "autoint": ("top",),
    "dcn_v2": ("top",),
    "deepfm": ("top",),
    "din": ("top", "attention"),
    "dlrm": ("bottom", "top"),
    "finalmlp": ("bottom", "top"),
    "mmoe": ("bottom", "top"),
    "ple": ("bottom", "top"),
    "sequence": ("top", "dropout"),
    "shared_bottom": ("bottom", "top"),
    "two_tower": ("top",),
    "wide_deep": ("top",),
}
_TASKS = "tasks"
# All threads share the generators, so the lock is held from seeding them to the last drawn weight.
_generator_lock = threading.Lock()


def seed_all(seed: int) -> None:
    """Seed the own generators of torch, NumPy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@contextmanager
def own_random_numbers(seed: int) -> Iterator[None]:
    """Seed the own generators for a block, which they do not notice afterwards.

    Any thread may call; others that do wait.
    """
    with _generator_lock:
        states = torch.random.get_rng_state(), np.random.get_state(), random.getstate()
        seed_all(seed)
        try:
            yield
        finally:
            torch.random.set_rng_state(states[0])
            np.random.set_state(states[1])
            random.setstate(states[2])


def load_custom_model(name: str) -> Any:
    """Return the object called "package.module:Class" or "./file.py:Class".

    A file is imported once in a process, by its path. Raises JobFileError if the import fails.
    """
    where, _, class_name = name.rpartition(":")
    try:
        return getattr(load_module(where), class_name)
    except NoSuchFile as error:
        raise JobFileError(
            f"{name!r} given; there is no file {where}", where=_WHERE, remedy="give the path of a Python file"
        ) from error
    except Exception as error:
        raise JobFileError(
            f"{name!r} cannot be imported ({type(error).__name__}: {error})",
            where=_WHERE,
            remedy="correct the file"
            if is_file(where)
            else "install the package that holds it, or set PYTHONPATH to its folder",
        ) from error


def build_model(job: Job, label_rates: Sequence[float] = ()) -> nn.Module:
    """Return the job's dense model with its first weights, drawn from `run.seed`.

    With `model.output_bias = "label_rate"`, and a rate between 0 and 1 of each label, the bias of a logit is
    the log-odds of its label's rate. Any thread may call this.

    Raises:
        JobFileError: the name is unknown or cannot be imported, or the model cannot be made or breaks the
            contract.
    """
    arguments: dict[str, Any] = dict(job.model.options)
    name = job.model.name
    for key in KEYS.get(name, ()):
        if key in arguments:
            raise JobFileError(
                f"{name} takes no such option", where=f"model.options.{key}", remedy=f"write model.{key}"
            )
        arguments[key] = getattr(job.model, key)
    maker = find_model(name)
    dense, dims = job.model_inputs
    arguments |= _tasks_of(job, maker) | _inputs(job, maker)
    if job.model.has_towers:
        arguments |= towers_of(job)
    if job.model.has_history:
        arguments |= history_of(job)
    try:
        inspect.signature(maker).bind(dense, dims, **arguments)
    except TypeError as error:
        raise JobFileError(
            f"{name} cannot be made with (dense_features, embedding_dims, "
            f"{', '.join(arguments) or 'no options'}): {error}",
            where="model.options",
        ) from error
    try:
        with own_random_numbers(job.run.seed):
            module = maker(dense, dims, **arguments)
        if name in MODELS:
            regularize_(module, dropout=job.model.dropout, layer_norm=job.model.layer_norm)
    except Exception as error:
        raise JobFileError(
            f"{job.model.name} cannot be made: {type(error).__name__}: {error}", where="model"
        ) from error
    _set_output_bias(job, module, label_rates)
    _check_contract(job, module)
    return module


def find_model(name: str) -> Callable[..., nn.Module]:
    """Return the class of a model's name.

    Raises JobFileError for an unknown name, or a class that is not a torch.nn.Module.
    """
    if name in MODELS:
        return MODELS[name]
    if ":" not in name:
        raise JobFileError(
            f"{name!r} is not a known model",
            where="model.name",
            remedy=f"give one of {', '.join(sorted(MODELS))}, or your own as package.module:Class or "
            "./file.py:Class",
        )
    custom = load_custom_model(name)
    if not (isinstance(custom, type) and issubclass(custom, nn.Module)):
        raise JobFileError(
            f"{name!r} is not a subclass of torch.nn.Module",
            where="model.name",
            remedy="give a model's class",
        )
    return custom


def takes_jagged(job: Job) -> bool:
    """Whether the job's model gets sequences as a `JaggedSequence`; raises as `find_model`."""
    return bool(getattr(find_model(job.model.name), "takes_jagged", False))


def zero_inputs(job: Job) -> tuple[torch.Tensor, Embeddings]:
    """Return the arguments of `forward` for 2 examples of zeros.

    The second one has empty lists.
    """
    zeros: Embeddings = []
    jagged = takes_jagged(job)
    for entry in model_inputs_of(job.embedded_columns, job.data.columns):
        if entry.longest is None:
            zeros.append(torch.zeros(2, entry.dim))
            continue
        length = min(2, entry.longest)
        lengths = torch.tensor([length, 0])
        if jagged:
            zeros.append(JaggedSequence(torch.zeros(length, entry.dim), lengths))
        else:
            zeros.append(EmbeddedSequence(torch.zeros(2, length, entry.dim), lengths))
    return torch.zeros(2, job.data.dense_width), zeros


def log_odds(rate: float) -> float:
    """Return the logit of a probability strictly between 0 and 1."""
    return math.log(rate) - math.log1p(-rate)


def _tasks_of(job: Job, maker: Callable[..., nn.Module]) -> dict[str, int]:
    """Return the argument with the number of labels, where a model takes it."""
    count = len(job.data.label_names)
    takes = _TASKS in inspect.signature(maker).parameters
    # With one label the option is the model's own business, except for a built-in model.
    if takes and _TASKS in job.model.options and (count > 1 or job.model.name in MODELS):
        raise JobFileError(
            f"given; it is the number of labels in data.columns, {count}",
            where=f"model.options.{_TASKS}",
            remedy="leave it out",
        )
    return {_TASKS: count} if takes and count > 1 else {}


def _inputs(job: Job, maker: Callable[..., nn.Module]) -> dict[str, Any]:
    """Return the argument `inputs` of a model that takes sequences.

    Raises JobFileError for a sequence and a model that takes none.
    """
    if getattr(maker, "takes_sequences", False) or getattr(maker, "takes_jagged", False):
        return {"inputs": model_inputs_of(job.embedded_columns, job.data.columns)}
    for column in job.embedded_columns:
        if column.pooling == "none" and column.name != job.model.negatives:
            raise JobFileError(
                f'column {column.name} has pooling = "none", but {job.model.name} takes no sequences',
                where=f"data.columns.{column.name}.pooling",
                remedy='set "sum" or "mean", or model.name = "din" or "sequence"; a class of your own says'
                " takes_sequences = True or takes_jagged = True",
            )
    return {}


def _set_output_bias(job: Job, module: nn.Module, label_rates: Sequence[float]) -> None:
    setting = job.model.output_bias
    setter = getattr(module, "set_output_bias", None)
    if not isinstance(setting, str):
        if setter is None:
            raise JobFileError(
                f"{setting:g} given; {job.model.name} has no method set_output_bias",
                where="model.output_bias",
                remedy='add the method, or set "drawn"',
            )
        biases = [setting]
    elif setting == "label_rate" and label_rates and setter is not None:
        biases = [log_odds(rate) for rate in label_rates]
    else:
        return
    try:
        setter(biases if len(biases) > 1 else biases[0])
    except Exception as error:
        raise JobFileError(
            f"{job.model.name}.set_output_bias failed: {type(error).__name__}: {error}",
            where="model.name",
            remedy="set_output_bias(logit: float) sets the bias of the logit"
            if len(biases) == 1
            else "set_output_bias(logits: list[float]) sets the bias of each label's logit",
        ) from error


def _check_contract(job: Job, module: nn.Module) -> None:
    if not any(True for _ in module.parameters()):
        raise JobFileError(
            f"{job.model.name} has no parameters", where="model.name", remedy="give a model to train"
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise JobFileError(
            f"{job.model.name}: all parameters are frozen", where="model.name", remedy="leave some to train"
        )
    wrong = [name for name, parameter in module.named_parameters() if parameter.dtype != torch.float32]
    if wrong:
        raise JobFileError(
            f"{job.model.name}: the parameter {wrong[0]} is {module.get_parameter(wrong[0]).dtype}",
            where="model.name",
            remedy="make it float32",
        )
    require_methods(job, module)
    _check_scores(job, module)
    if job.model.has_own_loss:
        with own_random_numbers(job.run.seed):
            check_own_loss(job, module, zero_inputs(job))
    if job.validation.own:
        check_own_metrics(job, type(module))


def _check_scores(job: Job, module: nn.Module) -> None:
    names = job.data.label_names
    shape = "[B]" if len(names) == 1 else f"[B, {len(names)}], a column for each of {', '.join(names)}"
    gives_scores = not job.model.has_logits
    method, returns = (
        ("scores", f"scores(outputs) must return scores {shape}")
        if gives_scores
        else ("forward", f"forward(dense [B, D], embeddings: list of T [B, K_t]) must return logits {shape}")
    )
    dense, embeddings = zero_inputs(job)
    try:
        with own_random_numbers(job.run.seed), torch.no_grad():
            logits = scoring(job, module)(dense, embeddings)
    except Exception as error:
        raise JobFileError(
            f"{job.model.name}.{'forward or scores' if gives_scores else 'forward'} failed on a batch of 2"
            f" zeros: {type(error).__name__}: {error}",
            where="model.name",
            remedy=returns,
        ) from error
    needed = (2,) if len(names) == 1 else (2, len(names))
    if not isinstance(logits, torch.Tensor) or logits.shape != needed or logits.dtype != torch.float32:
        tensor = isinstance(logits, torch.Tensor)
        what = f"{logits.dtype} {list(logits.shape)}" if tensor else type(logits).__name__
        raise JobFileError(
            f"{job.model.name}.{method} returned {what} for a batch of 2",
            where="model.name",
            remedy=f"return float32 {'scores' if gives_scores else 'logits'} {shape}",
        )
