"""The embeddings of one batch in autograd, and their gradients.

The leaves of autograd are tensors on the memory of the nodes' replies. Gradients have the layout of the
requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

from ...types import Float32Array
from .gather_indices import BankIndices, GatherLayout, Span, SplitColumns
from .request import LookupPlan

FloatBuffer: TypeAlias = NDArray[np.float32] | torch.Tensor | memoryview | bytearray | bytes
"""float32 values of any shape: C-contiguous, 4-byte aligned."""


def flat_floats(values: FloatBuffer, count: int, what: str) -> torch.Tensor:
    """Return a float32 tensor [count] on the memory of `values`.

    Read-only memory is copied. Any thread may call this. Raises ValueError, which calls the values `what`,
    for a wrong size or type.
    """
    needed = f"{count} of float32, C-contiguous"
    if isinstance(values, torch.Tensor):
        if values.dtype != torch.float32 or values.numel() != count or not values.is_contiguous():
            raise ValueError(f"{what}: {values.dtype} {list(values.shape)}, not {needed}")
        return values.detach().view(-1)
    if isinstance(values, np.ndarray):
        if values.dtype != np.float32 or values.size != count or not values.flags.c_contiguous:
            raise ValueError(f"{what}: {values.dtype} {list(values.shape)}, not {needed}")
        array = values.reshape(-1)
    else:
        view = memoryview(values)
        if view.nbytes != count * 4:
            raise ValueError(f"{what}: {view.nbytes} bytes, not {count * 4} for {needed}")
        array = np.frombuffer(view, np.float32)
    # torch has no read-only tensors, and numpy arrays over `bytes` are read-only.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


class BatchEmbeddings:
    """One batch's embeddings; used by the worker thread that trains the batch.

    Attributes:
        leaves: one leaf for each node, float32 [floats of its reply in the layout], requiring a gradient. A
            leaf is on the memory of the node's reply, or on a copy of it on the device.
        embeddings: one tensor for each column, float32 [B, dim], computed by autograd from the leaves; of a
            column with pooling "none" [B, L, dim], with zeros behind the vectors of a shorter list; where the
            router is `jagged` [N, dim], the lists one behind the other. Must not be changed in place. To have
            them side by side, `torch.cat` them along dimension 1 together with the other inputs.
        lengths: for each column with pooling "none" its tensor of lengths, int32 [B].

    The embeddings of a whole table share the leaves' memory; with distinct rows the vectors are copied to all
    examples that have the row. Those of a split table are gathered from its pieces. Those of a column with
    bags are the sum of the nodes' replies, divided for a mean; those of bags with weights are pooled here.

    Args:
        layout: of the batch.
        tensors: its index tensors, on the device.
        data: the nodes' replies as the layout has them, float32, on the device.
    """

    def __init__(
        self, layout: GatherLayout, tensors: Sequence[torch.Tensor], data: Sequence[torch.Tensor]
    ) -> None:
        self.leaves: list[torch.Tensor] = [values.detach().requires_grad_() for values in data]
        self.lengths: dict[int, torch.Tensor] = {
            column: tensors[number] for column, number in layout.lengths.items()
        }
        self._targets: list[torch.Tensor | None] = [None] * len(data)
        join = _Batch(layout, tensors, self._targets)
        self.embeddings: list[torch.Tensor] = list(_join(join, data, self.leaves))

    def gradients_into(self, targets: Sequence[torch.Tensor | None]) -> None:
        """Set the memory that the nodes' gradients are written to.

        Call this before the backward pass. `targets` has for each node float32 [floats of its leaf],
        contiguous and on the device, which is written once and which `gradients` then returns; None for new
        memory.
        """
        self._targets[:] = targets

    def leaf_gradients(self) -> list[torch.Tensor]:
        """Return each leaf's gradient, on the device; call it after the backward pass.

        Embeddings that the loss does not depend on have zeros. Nothing else writes to the tensors.
        """
        return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in self.leaves]

    def gradients(self) -> list[Float32Array]:
        """Return `leaf_gradients` on the CPU; with a device it waits until the pass is done."""
        return [gradient.detach().cpu().numpy() for gradient in self.leaf_gradients()]


def replies_of(requests: Sequence[LookupPlan], replies: Sequence[FloatBuffer]) -> list[torch.Tensor]:
    """Return the nodes' replies, float32 [floats of its request], on their memory; raises ValueError."""
    return [
        flat_floats(reply, request.floats, f"the reply of embedding node {request.node}")
        for request, reply in zip(requests, replies, strict=True)
    ]


def copy_spans(spans: Sequence[Span], source: torch.Tensor, target: torch.Tensor, *, back: bool) -> None:
    """Copy floats of a reply to their places in a padded one, or back."""
    for start, place, floats in spans:
        if back:
            start, place = place, start
        target[place : place + floats].copy_(source[start : start + floats])


def _join(
    batch: _Batch, data: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    joined = _Join.apply(batch, data, *leaves)  # type: ignore[no-untyped-call]
    return cast(tuple[torch.Tensor, ...], joined)


@dataclass(slots=True)
class _Batch:
    """What `_Join` needs of a batch.

    Attributes:
        targets: see `BatchEmbeddings.gradients_into`.
    """

    layout: GatherLayout
    tensors: Sequence[torch.Tensor]
    targets: list[torch.Tensor | None]


class _Join(torch.autograd.Function):
    """Compute the embeddings of all columns from the leaves of all nodes.

    Views and `unbind` would do the same for whole tables. But a leaf that also has rows of split tables would
    then sum its gradient from several tensors of its size. Here each gradient is written once.
    """

    @staticmethod
    def forward(
        ctx: Any, batch: _Batch, data: Sequence[torch.Tensor], *_: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.batch, ctx.like = batch, data[0]
        layout, tensors = batch.layout, batch.tensors
        columns: dict[int, torch.Tensor] = {}
        split = {
            dim: (data[0].new_zeros if of.zeroed or of.spare else data[0].new_empty)(
                of.vectors + of.spare, dim
            )
            for dim, of in layout.split
        }
        for banks, values in zip(layout.nodes, data, strict=True):
            for bank, part in _by_bank(banks, values):
                _scatter_vectors(bank, part, tensors, columns, split)
        for dim, of in layout.split:
            sizes = [vectors for _, vectors in of.columns]
            parts = torch.split(split[dim], [*sizes, of.spare] if of.spare else sizes)
            columns.update(zip((column for column, _ in of.columns), parts, strict=False))
        for column, number in layout.divisors:
            columns[column] = columns[column] / tensors[number]
        for column, item_list in layout.lists:
            columns[column] = item_list.join(columns[column], tensors)
        return tuple(columns[column] for column in range(layout.columns))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        batch: _Batch = ctx.batch
        layout, tensors, targets = batch.layout, batch.tensors, list(batch.targets)
        batch.targets[:] = [None] * len(targets)
        known = list(gradients)
        for column, number in layout.divisors:
            gradient = known[column]
            known[column] = None if gradient is None else gradient / tensors[number]
        for column, item_list in layout.lists:
            gradient = known[column]
            known[column] = None if gradient is None else item_list.split(gradient, tensors)
        like: torch.Tensor = ctx.like
        split = {dim: _side_by_side(dim, of, known, like) for dim, of in layout.split}
        results = []
        for banks, floats, target in zip(layout.nodes, layout.floats, targets, strict=True):
            result = like.new_empty(floats) if target is None else target
            for bank, part in _by_bank(banks, result):
                _gather_gradients(bank, part, tensors, known, split)
            results.append(result)
        return (None, None, *results)


def _side_by_side(
    dim: int, of: SplitColumns, gradients: Sequence[torch.Tensor | None], like: torch.Tensor
) -> torch.Tensor:
    """Return the gradients of split columns as `SplitColumns` has their vectors."""
    parts = []
    for column, vectors in of.columns:
        gradient = gradients[column]
        parts.append(like.new_zeros(vectors, dim) if gradient is None else gradient)
    if of.spare:
        parts.append(like.new_zeros(of.spare, dim))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _by_bank(node: Sequence[BankIndices], values: torch.Tensor) -> Iterator[tuple[BankIndices, torch.Tensor]]:
    """Yield each bank's part of a node's floats, [vectors, dim]."""
    start = 0
    for bank in node:
        size = bank.vectors * bank.dim
        yield bank, values[start : start + size].view(bank.vectors, bank.dim)
        start += size


def _scatter_vectors(
    bank: BankIndices,
    values: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    columns: dict[int, torch.Tensor],
    split: dict[int, torch.Tensor],
) -> None:
    """Put one bank's vectors into their columns, [B, dim] each, and among those of split columns."""
    single = values[: bank.single]
    if bank.distinct is not None:
        single = single.index_select(0, tensors[bank.distinct[0]])
    start = len(bank.whole) * bank.batch
    if bank.whole:
        whole = single[:start].view(len(bank.whole), bank.batch, bank.dim)
        columns.update(zip(bank.whole, whole.unbind(0), strict=True))
    if bank.places is not None:
        split[bank.dim].index_copy_(0, tensors[bank.places], single[start:])
    if not bank.bags:
        return
    sums = values[bank.single :].view(len(bank.bags), bank.batch, bank.dim)
    for column, of_column in zip(bank.bags, sums.unbind(0), strict=True):
        # Each node with a piece of a split table has a part of the sum.
        columns[column] = columns[column] + of_column if column in columns else of_column


def _gather_gradients(
    bank: BankIndices,
    result: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor | None],
    split: dict[int, torch.Tensor],
) -> None:
    """Write the gradients of one bank's vectors to `result`, float32 [vectors, dim].

    `gradients` has the gradient of each column, or None.
    """
    distinct, single_result = bank.distinct, result[: bank.single]
    single = single_result if distinct is None else result.new_empty(bank.examples, bank.dim)
    start = len(bank.whole) * bank.batch
    _gather_blocks(bank, bank.whole, single[:start], gradients)
    if bank.places is not None:
        torch.index_select(split[bank.dim], 0, tensors[bank.places], out=single[start:])
    if distinct is not None and bank.single:
        _, order, begins = (tensors[number] for number in distinct)
        single_result.copy_(embedding_bag(order, single, begins, mode="sum"))
    _gather_blocks(bank, bank.bags, result[bank.single :], gradients)


def _gather_blocks(
    bank: BankIndices, columns: Sequence[int], result: torch.Tensor, gradients: Sequence[torch.Tensor | None]
) -> None:
    """Write the gradients of columns that have a vector for each example."""
    if not columns:
        return
    column_gradients = [gradients[column] for column in columns]
    known = [gradient for gradient in column_gradients if gradient is not None]
    block = result.view(len(column_gradients), bank.batch, bank.dim)
    if len(known) == len(column_gradients):
        torch.stack(known, out=block)
        return
    for piece, gradient in zip(block, column_gradients, strict=True):
        piece.zero_() if gradient is None else piece.copy_(gradient)
