"""The precision of a model's matrix products, and a module that scores with it.

Products in bfloat16 are those of training, `trainer.precision`: weights of linear and convolutional layers
are rounded to bfloat16, autocast rounds what they are multiplied with, and sums are float32.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Literal, TypeAlias, get_args

import torch
from torch import nn

from ..config.job import Job
from ..errors import JobFileError
from .layers.sequences import Embeddings
from .registry import zero_inputs
from .training.flat import roundable_weights

Precision: TypeAlias = Literal["float32", "bfloat16"]

_WHERE: Final = "precision"
# Names of `torch.cpu.get_capabilities` for native bfloat16 products, without a detour by float32.
_CPU_BFLOAT16: Final = ("avx512_bf16", "amx_bf16", "bf16")


def find_precision(setting: Literal["auto", "float32", "bfloat16"], device: torch.device) -> Precision:
    """Return the precision that `trainer.precision` means on this device.

    "auto" is bfloat16 if the device has native bfloat16 products. Elsewhere it is float32, as bfloat16 would
    only be slower.
    """
    if setting != "auto":
        return setting
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.get_device_capability(device) >= (8, 0) else "float32"
    # Older versions of torch do not have the function.
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return "bfloat16" if any(capabilities.get(name) for name in _CPU_BFLOAT16) else "float32"


def check_precision(precision: str) -> None:
    """Raise JobFileError for a precision that this CPU cannot compute in, or no precision."""
    known = get_args(Precision)
    if precision not in known:
        raise JobFileError(
            f"{precision!r} given", where=_WHERE, remedy=f"give {' or '.join(map(repr, known))}"
        )
    if precision == "bfloat16" and find_precision("auto", torch.device("cpu")) != "bfloat16":
        raise JobFileError(
            "bfloat16 given, but this CPU has no instructions for products of bfloat16",
            where=_WHERE,
            remedy="give float32, which is faster here, or use a CPU with AVX512-BF16, AMX or Arm's BF16",
        )


class DenseScorer:
    """Compute logits by a dense module, with its products in a precision.

    In float32 it is the module itself. In bfloat16 it is a copy with rounded weights. Any thread may call.

    Args:
        module: float32, on the CPU, in evaluation mode.
        job: the job of the module, for its inputs.
        precision: "float32" or "bfloat16".

    Raises JobFileError as `check_precision`, and for a module that cannot be computed in bfloat16.
    """

    def __init__(self, module: nn.Module, job: Job, precision: Precision) -> None:
        check_precision(precision)
        self.precision: Precision = precision
        self._module = module
        if precision == "bfloat16":
            self._module = _rounded(module)
            self._try(job)

    def logits(
        self, dense: torch.Tensor, embeddings: Embeddings, owner: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return logits, float32 [B], or [B, T] of T labels, without autograd.

        `dense` is [B, D]. With `owner`, int64 [B], it is [R, D], and has one row for each owner; only for a
        module that `shares`.
        """
        with torch.inference_mode(), self._products():
            logits: torch.Tensor
            if owner is None:
                logits = self._module(dense, embeddings)
            else:
                logits = self._module.forward_shared(dense, owner, embeddings)  # type: ignore[operator]
            return logits.float()

    def vectors(
        self, tower: Literal["query", "item"], dense: torch.Tensor, embeddings: Embeddings
    ) -> torch.Tensor:
        """Return the vectors of a tower, float32 [B, dim], without autograd; only for a model with towers."""
        with torch.inference_mode(), self._products():
            vectors: torch.Tensor = self._module.vectors(tower, dense, embeddings)  # type: ignore[operator]
            return vectors

    @property
    def shares(self) -> bool:
        """Whether the module can compute once what rows of one owner share."""
        return hasattr(self._module, "forward_shared")

    def _products(self) -> AbstractContextManager[object]:
        if self.precision == "float32":
            return nullcontext()
        # Without a cache: the weights are rounded already.
        return torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False)

    def _try(self, job: Job) -> None:
        """Raise JobFileError if 2 examples of zeros have no logits."""
        dense, embeddings = zero_inputs(job)
        try:
            self.logits(dense, embeddings)
        except Exception as error:
            raise JobFileError(
                f"{job.model.name}.forward fails with products in bfloat16: {type(error).__name__}: {error}",
                where=_WHERE,
                remedy="give float32, or have forward take tensors of bfloat16 from its layers",
            ) from error


def _rounded(module: nn.Module) -> nn.Module:
    """Return a copy whose weights of linear and convolutional layers are bfloat16."""
    copied = copy.deepcopy(module)
    for weight in roundable_weights(copied):
        weight.data = weight.data.bfloat16()
    return copied
