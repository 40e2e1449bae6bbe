"""The embeddings of one batch in autograd, and their gradients.

The leaves of autograd are tensors on the memory of the nodes' replies. Gradients have the layout of the
requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

from ...types import Float32Array, Int32Array
from .gather_indices import BankIndices, GatherIndices
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
        leaves: one leaf for each node, float32 [floats of its request], requiring a gradient. A leaf is on
            the memory of the node's reply, or on a copy of it on the device.
        embeddings: one tensor for each table, float32 [B, dim], computed by autograd from the leaves; of a
            table with pooling "none" [B, L, dim], with zeros behind the vectors of a shorter list. Must not
            be changed in place. To have them side by side, `torch.cat` them along dimension 1 together with
            the other inputs.
        lengths: for each table with pooling "none" int32 [B], on the CPU: number of vectors of each list.

    The embeddings of a whole table share the leaves' memory; with distinct rows the vectors are copied to all
    examples that have the row. Those of a split table are gathered from its pieces. Those of a table with
    bags are the sum of the nodes' replies, divided for a mean; those of bags with weights are pooled here.
    """

    def __init__(
        self,
        requests: Sequence[LookupPlan],
        replies: Sequence[FloatBuffer],
        tables: int,
        device: torch.device,
    ) -> None:
        data = [
            flat_floats(reply, request.floats, f"the reply of embedding node {request.node}").to(
                device, non_blocking=True
            )
            for request, reply in zip(requests, replies, strict=True)
        ]
        self.leaves: list[torch.Tensor] = [values.detach().requires_grad_() for values in data]
        indices = GatherIndices(requests, tables, device)
        self.lengths: dict[int, Int32Array] = {
            table: bags.lengths for table, bags in requests[0].bags.items() if bags.pooling == "none"
        }
        self._targets: list[Float32Array | None] = [None] * len(data)
        self.embeddings: list[torch.Tensor] = list(_join(indices, data, self._targets, self.leaves))

    def gradients_into(self, targets: Sequence[Float32Array | None]) -> None:
        """Set the memory that the nodes' gradients are written to.

        Call this before the backward pass; it has an effect only on the CPU. `targets` has for each node
        float32 [floats of its request], C-contiguous, which is written once and which `gradients` then
        returns; None for new memory.
        """
        self._targets[:] = targets

    def gradients(self) -> list[Float32Array]:
        """Return each node's gradients, in the order of its rows.

        Each array is float32 [floats of the node's request], on the CPU. Call this after the backward pass;
        with a device it waits until the pass is done. Embeddings that the loss does not depend on have zeros.
        The arrays are the caller's; nothing else writes to them.
        """
        return [
            np.zeros(len(leaf), np.float32) if leaf.grad is None else leaf.grad.cpu().numpy()
            for leaf in self.leaves
        ]


def _join(
    indices: GatherIndices,
    data: Sequence[torch.Tensor],
    targets: list[Float32Array | None],
    leaves: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    joined = _Join.apply(indices, data, targets, *leaves)  # type: ignore[no-untyped-call]
    return cast(tuple[torch.Tensor, ...], joined)


class _Join(torch.autograd.Function):
    """Compute the embeddings of all tables from the leaves of all nodes.

    Views and `unbind` would do the same for whole tables. But a leaf that also has pieces of split tables
    would then sum its gradient from several tensors of its size. Here each gradient is written once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        indices: GatherIndices,
        data: Sequence[torch.Tensor],
        targets: list[Float32Array | None],
        *_: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.indices, ctx.targets = indices, targets
        tables: dict[int, torch.Tensor] = {}
        for node, values in zip(indices.nodes, data, strict=True):
            for bank, part in _by_bank(node, values):
                _scatter_vectors(bank, part, tables)
        for table, divisor in indices.divisors.items():
            tables[table] = tables[table] / divisor
        for table, table_list in indices.lists.items():
            tables[table] = table_list.join(tables[table])
        return tuple(tables[table] for table in range(indices.tables))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        indices: GatherIndices = ctx.indices
        table_gradients = list(gradients)
        for table, divisor in indices.divisors.items():
            gradient = table_gradients[table]
            table_gradients[table] = None if gradient is None else gradient / divisor
        for table, table_list in indices.lists.items():
            gradient = table_gradients[table]
            table_gradients[table] = None if gradient is None else table_list.split(gradient)
        results = []
        targets, ctx.targets[:] = list(ctx.targets), [None] * len(indices.nodes)
        for node, floats, target in zip(indices.nodes, indices.floats, targets, strict=True):
            if target is None or indices.device.type != "cpu":
                result = torch.empty(floats, device=indices.device)
            else:
                result = torch.from_numpy(target)
            for bank, part in _by_bank(node, result):
                _gather_gradients(bank, part, table_gradients)
            results.append(result)
        return (None, None, None, *results)


def _by_bank(node: Sequence[BankIndices], values: torch.Tensor) -> Iterator[tuple[BankIndices, torch.Tensor]]:
    """Yield each bank's part of a node's floats, [vectors, dim]."""
    start = 0
    for bank in node:
        size = bank.vectors * bank.dim
        yield bank, values[start : start + size].view(bank.vectors, bank.dim)
        start += size


def _scatter_vectors(bank: BankIndices, values: torch.Tensor, tables: dict[int, torch.Tensor]) -> None:
    """Put one bank's vectors into their tables, [B, dim] each."""
    single = values[: bank.single]
    if bank.distinct is not None:
        single = single.index_select(0, bank.distinct.which)
    start = len(bank.whole) * bank.batch
    whole = single[:start].view(len(bank.whole), bank.batch, bank.dim)
    tables.update(zip(bank.whole, whole.unbind(0), strict=True))
    for piece in bank.parts:
        if piece.table not in tables:
            # Zeros, because no row of a list is at the places behind a shorter one.
            make = values.new_zeros if piece.padded else values.new_empty
            tables[piece.table] = make(piece.vectors, bank.dim)
        tables[piece.table].index_copy_(0, piece.examples, single[start : start + len(piece.examples)])
        start += len(piece.examples)
    start = bank.single
    for table in bank.bags:
        sums = values[start : start + bank.batch]
        start += bank.batch
        # Each node with a piece of a split table has a part of the sum.
        tables[table] = tables[table] + sums if table in tables else sums


def _gather_gradients(
    bank: BankIndices, result: torch.Tensor, gradients: Sequence[torch.Tensor | None]
) -> None:
    """Write the gradients of one bank's vectors to `result`, float32 [vectors, dim].

    `gradients` has the gradient of each table, or None.
    """
    distinct, single_result = bank.distinct, result[: bank.single]
    single = single_result if distinct is None else result.new_empty(bank.examples, bank.dim)
    start = len(bank.whole) * bank.batch
    _gather_blocks(bank, bank.whole, single[:start], gradients)
    for piece in bank.parts:
        part, gradient = single[start : start + len(piece.examples)], gradients[piece.table]
        start += len(piece.examples)
        if gradient is None:
            part.zero_()
        else:
            torch.index_select(gradient, 0, piece.examples, out=part)
    if distinct is not None and bank.single:
        single_result.copy_(embedding_bag(distinct.order, single, distinct.begins, mode="sum"))
    _gather_blocks(bank, bank.bags, result[bank.single :], gradients)


def _gather_blocks(
    bank: BankIndices, tables: Sequence[int], result: torch.Tensor, gradients: Sequence[torch.Tensor | None]
) -> None:
    """Write the gradients of tables that have a vector for each example."""
    table_gradients = [gradients[table] for table in tables]
    known = [gradient for gradient in table_gradients if gradient is not None]
    block = result.view(len(table_gradients), bank.batch, bank.dim)
    if table_gradients and len(known) == len(table_gradients):
        torch.stack(known, out=block)
        return
    for piece, gradient in zip(block, table_gradients, strict=True):
        piece.zero_() if gradient is None else piece.copy_(gradient)
