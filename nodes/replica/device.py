"""The device of a trainer: how batches get to it, and results back.

The CPU is one, too; `cuda` has the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

import torch

from ...pipeline.models.sequences import Embeddings, with_lengths
from ...pipeline.types import Float32Array, Int32Array, Int64Array
from .buffer import FlatReplica
from .scattered import ScatteredBuffer

NO_LENGTHS: Final[Mapping[int, Int32Array]] = MappingProxyType({})


@dataclass(slots=True)
class Staged:
    """A batch on the device, or being copied there.

    Attributes:
        labels: float32 [B], or [B, T] of T labels.
        weights: float32 [B], or None for a job without sample weights.
        dense: float32 [B, D].
        embeddings: one tensor per table, float32 [B, K_t], with autograd; [B, L_t, K_t] for a sequence.
        leaves: the tensors where the backward pass ends on the device; empty on the CPU, where the backward
            pass continues behind the embeddings.
        lengths: number of vectors of each example, [B], for each table that is a sequence; float32 on a GPU.
    """

    labels: torch.Tensor
    weights: torch.Tensor | None
    dense: torch.Tensor
    embeddings: list[torch.Tensor]
    leaves: list[torch.Tensor] = field(default_factory=list)
    lengths: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def model_embeddings(self) -> Embeddings:
        """The embeddings as a model gets them; ask within `DeviceStream.computing`."""
        return with_lengths(self.embeddings, self.lengths)


@dataclass(slots=True)
class Computed:
    """Outputs of a step on the device.

    Attributes:
        loss, norm: float32 scalars.
        logits: float32 [B], or [B, T] of T labels.
        gradients: gradients of `Staged.embeddings`, of the same shapes; None if the backward pass has put
            them behind the embeddings, or into the leaves.
    """

    loss: torch.Tensor
    norm: torch.Tensor
    logits: torch.Tensor
    gradients: list[torch.Tensor] | None = None


@dataclass(slots=True)
class StepResult:
    """The results of a step, on the host.

    Attributes:
        gradients: the gradients of `Staged.embeddings`, of the same shapes; None if autograd carried them on
            to the host by itself.
    """

    loss: float
    norm: float
    logits: Float32Array
    gradients: list[torch.Tensor] | None


class PendingResult(Protocol):
    """Results that are being copied to the host."""

    def wait(self) -> StepResult:
        """Block until the results are there.

        A worker waits for the device only here.
        """
        ...


class DeviceStream(Protocol):
    """One worker's stream of work on its device; belongs to the worker's thread."""

    def stage(
        self,
        labels: Float32Array,
        weights: Float32Array | None,
        dense: Float32Array,
        embeddings: Sequence[torch.Tensor],
        lengths: Mapping[int, Int32Array] = NO_LENGTHS,
    ) -> Staged:
        """Start to copy a batch to the device.

        Embeddings are on the CPU, with autograd behind them. `lengths` has int32 [B] for each table that is a
        sequence.
        """
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

    def open_stream(self) -> DeviceStream:
        return _CpuStream()


class _CpuStream:
    def stage(
        self,
        labels: Float32Array,
        weights: Float32Array | None,
        dense: Float32Array,
        embeddings: Sequence[torch.Tensor],
        lengths: Mapping[int, Int32Array] = NO_LENGTHS,
    ) -> Staged:
        return Staged(
            torch.from_numpy(labels),
            None if weights is None else torch.from_numpy(weights),
            torch.from_numpy(dense),
            list(embeddings),
            lengths={table: torch.from_numpy(of_table) for table, of_table in lengths.items()},
        )

    def computing(self, staged: Staged) -> AbstractContextManager[object]:  # noqa: ARG002
        return nullcontext()

    def fetch(self, staged: Staged, computed: Computed) -> PendingResult:  # noqa: ARG002
        return _ReadyResult(computed)


class _ReadyResult:
    def __init__(self, computed: Computed) -> None:
        self._computed = computed

    def wait(self) -> StepResult:
        done = self._computed
        return StepResult(float(done.loss), float(done.norm), done.logits.numpy(), done.gradients)
