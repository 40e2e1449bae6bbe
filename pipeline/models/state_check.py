"""The check that a model of one's own keeps no state beside its parameters.

A replica has parameters only: what else training changes, each worker would have for itself, no checkpoint
would contain, and scoring would not see. A module is therefore run, and refused if that changes it.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from ..config.job import Job
from ..errors import JobFileError
from .layers.sequences import EmbeddedSequence, Embeddings, JaggedSequence, ModelEmbedding
from .own.loss import check_own_loss, scoring
from .registry import MODELS, build_model, own_random_numbers, seed_all, zero_inputs
from .training.constants import constant_tensors

_ROUNDS, _SEED = 3, 3
_WHERE = "model.name"
_Inputs = tuple[torch.Tensor, Embeddings]


def check_stateless(job: Job, module: nn.Module) -> None:
    """Check that training changes nothing of the module but its parameters.

    Copies of the module are trained with random numbers and scored; `module` itself does not run. Another one
    is made, to see what `__init__` draws. Built-in models have no state. Any thread may call; the generators
    of torch, NumPy and Python are as before.

    Raises JobFileError, with the name of what changes: a buffer of the state dict; another attribute that
    changes with each call; or, without a name, whatever makes the same inputs give other logits than before.
    Also with the name of what is tied to a trained parameter by its memory alone, and for a module that
    scores an example by what others are beside it.
    """
    if job.model.name in MODELS:
        return
    _check_memory(job, module)
    _check_drawn(job, module)
    with own_random_numbers(_SEED):
        inputs = _usable(job, module, [_random_inputs(job, seed) for seed in (1, 2)], zero_inputs(job))
        run = copy.deepcopy(module)
        _check_buffers(job, run, inputs)
        _check_attributes(job, run, inputs[0])
        _check_logits(job, run, inputs)
        _check_rows(job, run, inputs[0])


def _check_memory(job: Job, module: nn.Module) -> None:
    """Check that nothing else has its values where a trained parameter has its own.

    Trained parameters get memory of the replica, so what is tied by memory alone would not follow them.
    """
    trained = {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad}
    others = [*module.named_parameters(), *module.named_buffers(), *_attribute_tensors(module)]
    for of, parameter in trained.items():
        for name, other in others:
            if other is not parameter and _overlap(other, parameter):
                what = f"{name} has its values in the memory of the parameter {of}, and would not follow it"
                remedy = (
                    "tie them as one parameter (self.b.weight = self.a.weight, not its .data), or take the"
                    " view in forward"
                )
                raise JobFileError(f"{job.model.name}: {what}", where=_WHERE, remedy=remedy)


def _attribute_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in _OF_TORCH:
                yield from ((f"{path}.{name}" if path else name, tensor) for tensor in _tensors(value))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple | deque):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    (start, stop), (begin, end) = _extent(first), _extent(second)
    return start < end and begin < stop


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return where a tensor's memory begins and ends."""
    if tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _check_drawn(job: Job, module: nn.Module) -> None:
    """Check that what no checkpoint contains is the same whenever the module is made."""
    again = build_model(job)
    first, second = _unsaved(module), _unsaved(again)
    for name in sorted({*first, *second}):
        if not _same(first.get(name), second.get(name)):
            remedy = (
                "draw from the own generators of torch, NumPy or Python, which are seeded from run.seed, or"
                " make it a float32 buffer of the state dict, which is saved"
            )
            what = f"{name} is another each time that the module is made"
            raise JobFileError(f"{job.model.name}: {what}", where=_WHERE, remedy=remedy)


def _unsaved(module: nn.Module) -> dict[str, Any]:
    saved = {name for name, _ in constant_tensors(module)}
    buffers = {name: value for name, value in module.named_buffers() if name not in saved}
    return _attributes(module) | buffers


def _check_buffers(job: Job, module: nn.Module, inputs: list[_Inputs]) -> None:
    before = {name: value.clone() for name, value in _saved_buffers(module).items()}
    for training in (False, True):
        for sample in inputs:
            _logits(job, module, sample, training=training)
    after = _saved_buffers(module)
    changed = [name for name in after | before if not _same(before.get(name), after.get(name))]
    if not changed:
        return
    norms = {name for name, part in module.named_modules() if isinstance(part, _NormBase)}
    of_norm = [name for name in changed if name.rpartition(".")[0] in norms]
    remedy = (
        "use torch.nn.LayerNorm or GroupNorm, which normalize each example by itself"
        if of_norm
        else "make it a parameter, which is trained and synchronized, or leave it as __init__ made it"
    )
    raise _state_error(job, f"the buffer {(of_norm or changed)[0]} changes in forward", remedy)


def _saved_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    saved = set(module.state_dict(keep_vars=True))
    return {name: value for name, value in module.named_buffers() if name in saved}


def _check_attributes(job: Job, module: nn.Module, sample: _Inputs) -> None:
    """Check that attributes do not change from call to call, of the same inputs.

    What a call leaves of itself, such as its attention weights, and what it makes once, may be there.
    """
    seen: list[dict[str, Any]] = []
    for _ in range(_ROUNDS):
        _logits(job, module, sample, training=True)
        seen.append(copy.deepcopy(_attributes(module)))
    last, one_before = seen[-1], seen[-2]
    for name in sorted({*last, *one_before}):
        if not _same(last.get(name), one_before.get(name)):
            remedy = "compute from the inputs and parameters alone"
            raise _state_error(job, f"the attribute {name} changes with each call of forward", remedy)


def _check_logits(job: Job, module: nn.Module, inputs: list[_Inputs]) -> None:
    """Check that logits do not depend on calls before."""
    first, other = inputs
    for training in (False, True):
        before = _logits(job, module, first, training=training)
        for _ in range(_ROUNDS):
            _logits(job, module, other, training=True)
        after = _logits(job, module, first, training=training)
        if not torch.allclose(before, after, rtol=1e-4, atol=1e-5, equal_nan=True):
            what = "forward gives the same inputs other logits after other batches"
            raise _state_error(job, what, "compute from the inputs and parameters alone")


def _check_rows(job: Job, module: nn.Module, inputs: _Inputs) -> None:
    """Check that an example's logits in scoring do not depend on the examples beside it."""
    dense, embeddings = inputs
    first = dense[:1], [_first_row(embedding) for embedding in embeddings]
    in_batch = _logits(job, module, inputs, training=False)[:1]
    again = _logits(job, module, inputs, training=False, seed=_SEED + 1)[:1]
    if not torch.equal(in_batch, again) or not in_batch.isfinite().all():
        # It draws numbers in scoring, or such inputs say nothing.
        return
    try:
        alone = _logits(job, module, first, training=False)
        what = "scores an example by what others are beside it"
    except Exception as error:  # noqa: BLE001 - the user's own
        alone, what = torch.full_like(in_batch, torch.nan), f"cannot score one example by itself ({error})"
    if not torch.allclose(in_batch, alone, rtol=1e-4, atol=1e-5):
        raise JobFileError(
            f"{job.model.name}: forward {what}; predict, serve and eval would give it other scores",
            where=_WHERE,
            remedy="normalize each example by itself (torch.nn.LayerNorm or GroupNorm)",
        )


def _first_row(embedding: ModelEmbedding) -> ModelEmbedding:
    if isinstance(embedding, EmbeddedSequence):
        return EmbeddedSequence(embedding.vectors[:1], embedding.lengths[:1])
    if isinstance(embedding, JaggedSequence):
        return JaggedSequence(embedding.values[: int(embedding.lengths[0])], embedding.lengths[:1])
    return embedding[:1]


def _state_error(job: Job, what: str, remedy: str) -> JobFileError:
    return JobFileError(
        f"{job.model.name}: {what}; such state is not synchronized, not saved and not scored",
        where=_WHERE,
        remedy=remedy,
    )


def _logits(
    job: Job, module: nn.Module, inputs: _Inputs, *, training: bool, seed: int = _SEED
) -> torch.Tensor:
    """Compute logits of the inputs, in training with a backward pass, and a loss of its own.

    The generators are seeded before, so that a module draws the same numbers each time.
    """
    module.train(training)
    seed_all(seed)
    dense, embeddings = copy.deepcopy(inputs)
    with torch.set_grad_enabled(training):
        logits: torch.Tensor = scoring(job, module)(dense, embeddings)
        if training and job.model.has_own_loss and len(dense) > 1:
            check_own_loss(job, module, (dense, embeddings))
        elif training and logits.requires_grad:
            logits.sum().backward()  # type: ignore[no-untyped-call]
    module.zero_grad(set_to_none=True)
    return logits.detach().clone()


def _usable(job: Job, module: nn.Module, candidates: list[_Inputs], zeros: _Inputs) -> list[_Inputs]:
    """Return the inputs, or zeros for a module that refuses such inputs."""
    try:
        for candidate in candidates:
            _logits(job, copy.deepcopy(module), candidate, training=True)
    except Exception:  # noqa: BLE001 - the user's own; a module may take some values only
        return [zeros, zeros]
    return candidates


def _random_inputs(job: Job, seed: int) -> _Inputs:
    generator = torch.Generator().manual_seed(seed)
    dense, embeddings = zero_inputs(job)
    for number, embedding in enumerate(embeddings):
        if isinstance(embedding, JaggedSequence):
            # Two lists with vectors, so that one may be told by the other.
            lengths = embedding.lengths.clamp(min=1)
            embedding = JaggedSequence(torch.zeros(int(lengths.sum()), embedding.values.shape[1]), lengths)
            embeddings[number] = embedding
        # A sequence's vectors are its first part.
        vectors = embedding if isinstance(embedding, torch.Tensor) else embedding[0]
        vectors.uniform_(generator=generator)
    return dense.uniform_(generator=generator), embeddings


_PLAIN = (bool, int, float, str, bytes, type(None))
_OF_TORCH = set(vars(nn.Module()))


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return what a module's parts hold beside what its state dict has, by name."""
    saved = _saved_buffers(module)
    attributes: dict[str, Any] = {
        name: tensor for name, tensor in module.named_buffers() if name not in saved
    }
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in _OF_TORCH and (held := _values(value)) is not None:
                attributes[f"{path}.{name}" if path else name] = held
    return attributes


def _values(value: Any) -> Any:
    """Return numbers, texts, tensors, arrays and collections of them; None for anything else."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, (*_PLAIN, np.ndarray, np.generic)):
        return value
    if isinstance(value, dict):
        return {str(key): _values(item) for key, item in value.items()}
    if isinstance(value, list | tuple | deque):
        return [_values(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return None


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return first.shape == second.shape and bool(torch.equal(first.nan_to_num(), second.nan_to_num()))
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.array_equal(first, second)
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_same(first[key], second[key]) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_same, first, second))
    return type(first) is type(second) and bool(first == second or (first != first and second != second))
