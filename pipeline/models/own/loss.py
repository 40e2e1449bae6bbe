"""A loss and scores of a model of one's own.

With `model.loss = "own"` the class has a method `loss(outputs, batch)`, and with `model.scores = "own"` also
`scores(outputs)`. `outputs` is what `forward` returns: a tensor, or a tuple, list or dict of tensors, in
float32 whatever the precision of training. Both compute from these and the parameters alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import nn

from ...config.job import Job
from ...config.model import IN_BATCH_SOFTMAX
from ...errors import JobFileError

NOT_SCALAR: Final = "its loss is not a scalar tensor"
DETACHED: Final = "its loss does not depend on the model"

_WHERE = "model.name"


class LossFault(Exception):
    """A loss that cannot be minimized; the text says why."""


@dataclass(frozen=True, slots=True)
class LossBatch:
    """What a loss of one's own sees of a batch, on the trainer's device.

    Attributes:
        labels: float32 [B], each 0.0 or 1.0; [B, T] of T labels.
        weights: sample weights, float32 [B]; None for a job without.
        groups: for each column of kind "group" the 64 bits of each value's hash, int64 [B]; 0 where it is
            missing.
        items: for the in-batch softmax, what tells the examples' items apart, int64 [B].
        log_frequency: for the same, the logarithm of the probability that an example has this item, float32
            [B].
        negatives: what is added to the scores of hard negatives, float32 [B, L]: 0, or -inf where a place has
            none that counts; None for a job without.
        positions: the number of each example's row in its file, from 0, int64 [B]; None for a job without a
            column of kind "row_number".
    """

    labels: torch.Tensor
    weights: torch.Tensor | None
    groups: Mapping[str, torch.Tensor]
    items: torch.Tensor | None = None
    log_frequency: torch.Tensor | None = None
    negatives: torch.Tensor | None = None
    positions: torch.Tensor | None = None


def in_float32(outputs: Any) -> Any:
    """Return outputs of `forward` with all of their floating-point tensors in float32."""
    if isinstance(outputs, torch.Tensor):
        return outputs.float() if outputs.is_floating_point() else outputs
    if isinstance(outputs, dict):
        return {name: in_float32(value) for name, value in outputs.items()}
    if isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        return type(outputs)(*map(in_float32, outputs))
    if isinstance(outputs, list | tuple):
        return type(outputs)(map(in_float32, outputs))
    return outputs


def own_loss(module: nn.Module, outputs: Any, batch: LossBatch) -> torch.Tensor:
    """Return the loss of outputs in float32, a float32 scalar with a graph.

    Raises LossFault, with the reason, for one that is not a scalar, or does not depend on the model.
    """
    loss: Any = module.loss(outputs, batch)  # type: ignore[operator]
    if not (isinstance(loss, torch.Tensor) and loss.ndim == 0 and loss.is_floating_point()):
        raise LossFault(NOT_SCALAR)
    if not loss.requires_grad:
        raise LossFault(DETACHED)
    return loss.float()


class ScoringModule(nn.Module):
    """A module whose `forward` returns the scores of a model that has its own, float32 [B] or [B, T]."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module

    def forward(self, dense: torch.Tensor, embeddings: Any) -> torch.Tensor:
        scores: torch.Tensor = self._module.scores(in_float32(self._module(dense, embeddings)))  # type: ignore[operator]
        return scores

    def vectors(self, tower: Literal["query", "item"], dense: torch.Tensor, embeddings: Any) -> torch.Tensor:
        """Return the vectors of one of the model's two towers, float32 [B, dim]."""
        vectors: torch.Tensor = getattr(self._module, f"{tower}_vectors")(dense, embeddings)
        return vectors.float()

    @property
    def temperature(self) -> float:
        """What the product of two such vectors is divided by in a score."""
        return float(self._module.temperature)  # type: ignore[arg-type]


def scoring(job: Job, module: nn.Module) -> nn.Module:
    """Return a module that computes scores: the model itself, or around it one with its own scores."""
    return module if job.model.has_logits else ScoringModule(module)


def check_own_loss(job: Job, module: nn.Module, inputs: tuple[torch.Tensor, Any]) -> None:
    """Raise JobFileError unless the loss of 2 examples can be minimized.

    They are of one group, and have the labels 0 and 1, so that they are a pair of a ranking loss. Must be
    called within `own_random_numbers`.
    """
    name = job.model.name
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    remedy = "loss(outputs, batch) must return the mean loss of the batch, a scalar computed from outputs"
    try:
        loss = own_loss(module, in_float32(module(*inputs)), _batch_of_two(job))
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    except LossFault as error:
        what = str(error).removeprefix("its ")
        raise JobFileError(f"{name}.loss: {what}, of a batch of 2", where=_WHERE, remedy=remedy) from error
    except Exception as error:
        raise JobFileError(
            f"{name}.loss failed on a batch of 2: {type(error).__name__}: {error}",
            where=_WHERE,
            remedy=remedy,
        ) from error
    if not math.isfinite(loss.detach()):
        raise JobFileError(
            f"{name}.loss: it is {float(loss.detach())} of a batch of 2 zeros with the labels 0 and 1",
            where=_WHERE,
            remedy=remedy,
        )
    if all(gradient is None for gradient in gradients):
        raise JobFileError(
            f"{name}.loss: it does not depend on a parameter that trains", where=_WHERE, remedy=remedy
        )


def _batch_of_two(job: Job) -> LossBatch:
    """Return two examples of one group with the labels 0 and 1."""
    labels, several, negatives = torch.tensor([0.0, 1.0]), len(job.data.label_names), None
    if job.model.negatives:
        negatives = torch.zeros(2, min(2, job.data.columns[job.model.negatives].max_ids))
    return LossBatch(
        labels if several == 1 else labels[:, None].repeat(1, several),
        torch.ones(2) if job.data.columns_as("weight") else None,
        {column: torch.ones(2, dtype=torch.int64) for column in job.data.group_names},
        torch.arange(2) if job.model.loss == IN_BATCH_SOFTMAX else None,
        negatives=negatives,
        positions=torch.arange(2) if job.data.row_number else None,
    )


def require_methods(job: Job, module: nn.Module) -> None:
    """Raise JobFileError for a method that the job file asks for and the class does not have."""
    for key in ("loss", "scores"):
        if getattr(job.model, key) == "own" and not callable(getattr(module, key, None)):
            raise JobFileError(
                f'"own" given; {job.model.name} has no method {key}', where=f"model.{key}", remedy="add it"
            )
