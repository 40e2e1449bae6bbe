"""A batch in one block of a device's memory, and its results in another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
import torch

from ...pipeline.embedding.lookup.gather_indices import GatherLayout, Span
from ...pipeline.embedding.lookup.vectors import copy_spans
from ...pipeline.types import Float32Array
from .device import Computed, HostBatch, StagedInputs, StepResult
from .streams import StreamEvent

# Tensors of int64 begin at a multiple of their size, and kernels read 16 bytes at once.
_ALIGNED_FLOATS: Final = 4
_FLOAT_BYTES: Final = 4

Part = tuple[int, torch.dtype, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Where the parts of a batch are in a block of floats.

    Batches of one layout can be trained by one captured step.

    Attributes:
        head: of labels, of weights, groups, frequencies and negatives if there are any, of dense features,
            learning rate, and index tensors: where each begins, its type and its shape.
        replies: where each node's reply begins, and its floats.
        gather: layout of the vectors.
        weighted, grouped, corrected, masked: whether there are weights, groups, frequencies, and negatives.
        head_floats: floats of `head`.
        floats: floats of the block.
    """

    head: tuple[Part, ...]
    replies: tuple[tuple[int, int], ...]
    gather: GatherLayout
    weighted: bool
    grouped: bool
    corrected: bool
    masked: bool
    head_floats: int
    floats: int

    @classmethod
    def of(cls, batch: HostBatch, tensors: Sequence[torch.Tensor]) -> BlockLayout:
        """Return the layout of a batch; `tensors` are those of `head_of`."""
        head, start = [], 0
        for tensor in tensors:
            head.append((start, tensor.dtype, tuple(tensor.shape)))
            start += _aligned(tensor.numel() * tensor.itemsize // _FLOAT_BYTES)
        head_floats, replies, gather = start, [], batch.indices.layout
        for floats in gather.floats:
            replies.append((start, floats))
            start += _aligned(floats)
        return cls(
            tuple(head),
            tuple(replies),
            gather,
            weighted=batch.weights is not None,
            grouped=batch.groups is not None,
            corrected=batch.log_frequency is not None,
            masked=batch.negatives is not None,
            head_floats=head_floats,
            floats=start,
        )

    def write_head(self, tensors: Sequence[torch.Tensor], block: torch.Tensor) -> None:
        """Write the tensors of `head_of` into memory of the host, float32 [head_floats]."""
        for part, tensor in zip(self.head, tensors, strict=True):
            _part(block, *part).copy_(tensor)

    def views(self, block: torch.Tensor) -> StagedInputs:
        """Return the parts as views of the block."""
        parts = iter([_part(block, *part) for part in self.head])
        return StagedInputs(
            labels=next(parts),
            weights=next(parts) if self.weighted else None,
            groups=next(parts) if self.grouped else None,
            log_frequency=next(parts) if self.corrected else None,
            negatives=next(parts) if self.masked else None,
            dense=next(parts),
            lr=next(parts),
            tensors=list(parts),
            data=list(self.data(block)),
        )

    def data(self, block: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the nodes' replies as views of the block."""
        for start, floats in self.replies:
            yield block[start : start + floats]


@dataclass(slots=True)
class BatchInBlock:
    """A batch in one block of device memory.

    Attributes:
        layout: its parts in the block.
        block: float32, on the device.
    """

    layout: BlockLayout
    block: torch.Tensor

    def inputs(self) -> StagedInputs:
        return self.layout.views(self.block)


@dataclass(slots=True)
class PackedBatch(BatchInBlock):
    """A batch that is being copied into its block.

    Attributes:
        arrived: when the block is filled.
        spans: see `GatherIndices`.
        replies: those of the nodes, which the device may still be reading.
    """

    arrived: StreamEvent
    spans: Sequence[Sequence[Span]]
    replies: Sequence[torch.Tensor]


def head_of(batch: HostBatch) -> tuple[torch.Tensor, ...]:
    """Return what a block has of a batch before the nodes' replies, on its memory; see `BlockLayout.head`."""
    optional = (batch.weights, batch.groups, batch.log_frequency, batch.negatives)
    present = (part for part in optional if part is not None)
    arrays = (batch.labels, *present, batch.dense, np.array(batch.lr, np.float32))
    return (*map(torch.from_numpy, arrays), *batch.indices.tensors)


def _aligned(floats: int) -> int:
    return -(-floats // _ALIGNED_FLOATS) * _ALIGNED_FLOATS


def _part(block: torch.Tensor, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    part = block[start : start + prod(shape) * dtype.itemsize // _FLOAT_BYTES]
    return (part if dtype == torch.float32 else part.view(dtype)).view(shape)


def results_of(packed: torch.Tensor, computed: Computed, spans: Sequence[Sequence[Span]]) -> StepResult:
    """Return the results of a step from a copy of what `Computed.pack` returns, on the host.

    The gradients are views of it, or copies where the layout has padded rows.
    """
    sizes = [gradient.numel() for gradient in computed.gradients]
    loss, norm, logits, *gradients = torch.split(packed, [1, 1, computed.logits.numel(), *sizes])
    return StepResult(
        float(loss),
        float(norm),
        logits.view(computed.logits.shape).numpy(),
        [_compact(gradient, of_node) for gradient, of_node in zip(gradients, spans, strict=False)],
    )


def _compact(padded: torch.Tensor, spans: Sequence[Span]) -> Float32Array:
    floats = sum(length for _, _, length in spans)
    if floats == len(padded):
        return padded.numpy()
    gradients = torch.empty(floats)
    copy_spans(spans, padded, gradients, back=True)
    return gradients.numpy()
