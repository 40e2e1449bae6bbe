"""The device of a trainer: how batches get to it, and results back.

The CPU is one, too; `cuda` has the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch

from ...pipeline.embedding.lookup.gather_indices import GatherIndices
from ...pipeline.types import Float32Array, Int64Array
from .buffer import FlatReplica
from .scattered import ScatteredBuffer


@dataclass(slots=True)
class HostBatch:
    """A batch on the host, before it goes to a device.

    Attributes:
        labels: float32 [B], or [B, T] of T labels.
        weights: float32 [B], or None for a job without sample weights.
        dense: float32 [B, D].
        groups: for a loss of one's own, int64 [S, B], see `LossBatch.groups`; for the in-batch softmax
            [1, B], see `LossBatch.items`; else None.
        indices: what places the vectors.
        replies: the nodes' replies, float32, each of the floats of its request.
        lr: the learning rate of a step.
        log_frequency: for the in-batch softmax with a correction, float32 [B], see
            `LossBatch.log_frequency`; else None.
        negatives: for the same with hard negatives, float32 [B, L], see `LossBatch.negatives`; else None.
    """

    labels: Float32Array
    weights: Float32Array | None
    dense: Float32Array
    indices: GatherIndices
    replies: Sequence[torch.Tensor]
    lr: float = 0.0
    groups: Int64Array | None = None
    log_frequency: Float32Array | None = None
    negatives: Float32Array | None = None


@dataclass(slots=True)
class StagedInputs:
    """The tensors of a batch on its device.

    Attributes:
        labels, weights, dense, groups, log_frequency, negatives: as `HostBatch` has them.
        tensors: the index tensors of `GatherIndices`.
        data: the nodes' replies as `GatherLayout` has them, float32.
        lr: float32 scalar on a device; None on the CPU.
    """

    labels: torch.Tensor
    weights: torch.Tensor | None
    dense: torch.Tensor
    tensors: list[torch.Tensor]
    data: list[torch.Tensor]
    lr: torch.Tensor | None = None
    groups: torch.Tensor | None = None
    log_frequency: torch.Tensor | None = None
    negatives: torch.Tensor | None = None


class Staged(Protocol):
    """A batch on the device, or being copied there."""

    def inputs(self) -> StagedInputs:
        """Return its tensors; call it within `DeviceStream.computing`."""
        ...


@dataclass(slots=True)
class Computed:
    """Outputs of a step on the device.

    Attributes:
        loss, norm: float32 scalars.
        logits: float32 [B], or [B, T] of T labels.
        gradients: those of the nodes' replies, of the floats that `GatherLayout` has; empty without training.
        packed: all of these in one, float32, or None.
    """

    loss: torch.Tensor
    norm: torch.Tensor
    logits: torch.Tensor
    gradients: Sequence[torch.Tensor] = ()
    packed: torch.Tensor | None = None

    def pack(self) -> torch.Tensor:
        """Return all outputs in one new tensor, float32."""
        parts = [self.loss.view(1), self.norm.view(1), self.logits.reshape(-1), *self.gradients]
        return torch.cat(parts)


@dataclass(slots=True)
class StepResult:
    """The results of a step, on the host.

    Attributes:
        gradients: those of the nodes' replies, float32, each of the floats of its request.
    """

    loss: float
    norm: float
    logits: Float32Array
    gradients: list[Float32Array]


class PendingResult(Protocol):
    """Results that are being copied to the host."""

    def wait(self) -> StepResult:
        """Block until the results are there.

        A worker waits for the device only here.
        """
        ...


class DeviceStream(Protocol):
    """One worker's stream of work on its device; belongs to the worker's thread."""

    def stage(self, batch: HostBatch) -> Staged:
        """Start to copy a batch to the device; its arrays must not change until the results are there."""
        ...

    def computing(self, staged: Staged) -> AbstractContextManager[object]:
        """Return a context for the work of a step on the staged batch.

        The work runs after the batch's arrival and after the shadow thread's changes to the replica so far;
        its later changes run after this work.
        """
        ...

    def fetch(self, staged: Staged, computed: Computed) -> PendingResult:
        """Start to copy results to the host; call it within `computing`."""
        ...


class Device(Protocol):
    """A device that holds a trainer's replica. Any thread may call."""

    @property
    def torch_device(self) -> torch.device:
        """The device as torch names it."""
        ...

    @property
    def steps_ahead(self) -> int:
        """Steps started before the results of the first are awaited."""
        ...

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor on the device; blocks."""
        ...

    def replica(
        self, buffer: torch.Tensor | ScatteredBuffer, examples: Int64Array, weights: int | None = None
    ) -> FlatReplica:
        """Return the replica over `buffer`, float32 [numel] on the device; one per trainer.

        The first `weights` elements are weights, all by default.
        """
        ...

    def page_lock(self, memory: Float32Array) -> object | None:
        """Keep memory of the host in place, so that the device copies it by itself.

        It is in place as long as the result is referred to, and stays mapped as long. None if it cannot be,
        or if that is of no use.
        """
        ...

    def open_stream(self) -> DeviceStream:
        """Return a stream for the worker whose thread calls.

        Call it after `replica`. Work on the stream sees everything placed on the device before.
        """
        ...


class CpuDevice:
    """The CPU: nothing is copied, nothing waits."""

    torch_device = torch.device("cpu")
    steps_ahead = 0

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor itself."""
        return tensor

    def replica(
        self, buffer: torch.Tensor | ScatteredBuffer, examples: Int64Array, weights: int | None = None
    ) -> FlatReplica:
        return FlatReplica(buffer, examples, weights)

    def page_lock(self, memory: Float32Array) -> None:
        """Do nothing: the CPU reads memory where it is."""

    def open_stream(self) -> DeviceStream:
        return _CpuStream()


@dataclass(slots=True)
class _CpuBatch:
    batch: HostBatch

    def inputs(self) -> StagedInputs:
        batch = self.batch
        return StagedInputs(
            torch.from_numpy(batch.labels),
            _tensor(batch.weights),
            torch.from_numpy(batch.dense),
            batch.indices.tensors,
            list(batch.replies),
            groups=_tensor(batch.groups),
            log_frequency=_tensor(batch.log_frequency),
            negatives=_tensor(batch.negatives),
        )


def _tensor(values: Float32Array | Int64Array | None) -> torch.Tensor | None:
    return None if values is None else torch.from_numpy(values)


class _CpuStream:
    def stage(self, batch: HostBatch) -> Staged:
        return _CpuBatch(batch)

    def computing(self, staged: Staged) -> AbstractContextManager[object]:  # noqa: ARG002
        return nullcontext()

    def fetch(self, staged: Staged, computed: Computed) -> PendingResult:  # noqa: ARG002
        return _ReadyResult(computed)


class _ReadyResult:
    def __init__(self, computed: Computed) -> None:
        self._computed = computed

    def wait(self) -> StepResult:
        done = self._computed
        gradients = [gradient.numpy() for gradient in done.gradients]
        return StepResult(float(done.loss), float(done.norm), done.logits.numpy(), gradients)
