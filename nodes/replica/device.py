"""Where a trainer computes: how batches get to a worker's model, and results back; the CPU's way of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch

from ...pipeline.types import Float32Array, Int64Array
from .buffer import FlatReplica


@dataclass(slots=True)
class Staged:
    """A batch on its way to the device, or there: tensors for the model, on the device.

    Attributes:
        labels: float32 [B].
        weights: float32 [B], or None for a job without sample weights.
        dense: float32 [B, D].
        embeddings: for each table float32 [B, K_t], with autograd behind it.
        leaves: where the backward pass ends on the device; none on the host, where it goes on behind the
            embeddings.
    """

    labels: torch.Tensor
    weights: torch.Tensor | None
    dense: torch.Tensor
    embeddings: list[torch.Tensor]
    leaves: list[torch.Tensor] = field(default_factory=list)


@dataclass(slots=True)
class Computed:
    """What a step leaves on the device: loss and gradient norm as float32 scalars, logits float32 [B]."""

    loss: torch.Tensor
    norm: torch.Tensor
    logits: torch.Tensor


@dataclass(slots=True)
class StepResult:
    """The results of a step, on the host.

    Attributes:
        gradients: those of `Staged.embeddings`, float32 [B, K_t] each, where autograd could not carry them on
            to the host by itself; else None.
    """

    loss: float
    norm: float
    logits: Float32Array
    gradients: list[torch.Tensor] | None


class PendingResult(Protocol):
    """Results on their way to the host."""

    def wait(self) -> StepResult:
        """Blocks until they are there; nothing else in a worker waits for the device."""
        ...


class DeviceStream(Protocol):
    """One worker's way to its device and back; owned by the worker's thread."""

    def stage(
        self,
        labels: Float32Array,
        weights: Float32Array | None,
        dense: Float32Array,
        embeddings: Sequence[torch.Tensor],
    ) -> Staged:
        """Starts to bring a batch to the device; embeddings are on the CPU, with autograd behind them."""
        ...

    def computing(self, staged: Staged) -> AbstractContextManager[object]:
        """Work enqueued inside comes after the batch's arrival and after what the shadow thread did to the
        replica; what it does to the replica later comes after this work."""
        ...

    def fetch(self, staged: Staged, computed: Computed) -> PendingResult:
        """Starts to bring results to the host; called within `computing`."""
        ...


class Device(Protocol):
    """Where the replica of a trainer lives. Any thread may call."""

    @property
    def torch_device(self) -> torch.device:
        """As torch names it."""
        ...

    @property
    def steps_ahead(self) -> int:
        """How many steps a worker starts before it waits for the results of the first."""
        ...

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, on the device; blocks."""
        ...

    def replica(self, flat: torch.Tensor, examples: Int64Array) -> FlatReplica:
        """The replica over `flat`, float32 [numel], which lies on the device; one for each trainer."""
        ...

    def open_stream(self) -> DeviceStream:
        """A lane for the worker whose thread calls, after `replica`. What was put on the device before is
        there for all that is enqueued on the lane."""
        ...


class CpuDevice:
    """The host itself: nothing is copied, nothing waits."""

    torch_device = torch.device("cpu")
    steps_ahead = 0

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself."""
        return tensor

    def replica(self, flat: torch.Tensor, examples: Int64Array) -> FlatReplica:
        """See `Device.replica`."""
        return FlatReplica(flat, examples)

    def open_stream(self) -> DeviceStream:
        """See `Device.open_stream`."""
        return _CpuStream()


class _CpuStream:
    def stage(
        self,
        labels: Float32Array,
        weights: Float32Array | None,
        dense: Float32Array,
        embeddings: Sequence[torch.Tensor],
    ) -> Staged:
        on_weights = None if weights is None else torch.from_numpy(weights)
        return Staged(torch.from_numpy(labels), on_weights, torch.from_numpy(dense), list(embeddings))

    def computing(self, staged: Staged) -> AbstractContextManager[object]:  # noqa: ARG002
        return nullcontext()

    def fetch(self, staged: Staged, computed: Computed) -> PendingResult:  # noqa: ARG002
        return _ReadyResult(computed)


class _ReadyResult:
    def __init__(self, computed: Computed) -> None:
        self._computed = computed

    def wait(self) -> StepResult:
        done = self._computed
        return StepResult(float(done.loss), float(done.norm), done.logits.numpy(), None)
