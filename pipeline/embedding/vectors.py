"""The embeddings of one batch as autograd sees them, and their gradients as the nodes want them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from ..data.batch import Float32Array
from .floats import Floats, float_rows
from .lookup import LookupPlan


class Vectors:
    """One batch's embeddings. Used by the worker thread that trains the batch.

    Attributes:
        leaves: for each node a leaf, float32 [N, dim], requiring a gradient, on the memory of its answer.
        embeddings: for each table float32 [B, dim], by autograd from the leaves: those of whole tables are on
            the answer's memory too, those of split tables are gathered from their pieces. Not to be changed
            in place. A model that wants
            them side by side does best to `torch.cat` them along dimension 1 with whatever else goes there.
    """

    def __init__(self, requests: Sequence[LookupPlan], answers: Sequence[Floats], dim: int) -> None:
        data = [
            float_rows(answer, len(request.rows), dim, f"the answer of embedding node {request.node}")
            for request, answer in zip(requests, answers, strict=True)
        ]
        self.leaves: list[torch.Tensor] = [values.detach().requires_grad_() for values in data]
        self.embeddings: list[torch.Tensor] = list(_join(requests, data, self.leaves))

    def gradients(self) -> list[Float32Array]:
        """After the backward pass: for each node float32 [N, dim], C-contiguous, in the order of its rows.

        Embeddings that the loss does not hang on have zeros. The arrays are the caller's; nothing else
        writes to them.
        """
        return [
            np.zeros(tuple(leaf.shape), np.float32) if leaf.grad is None else leaf.grad.numpy()
            for leaf in self.leaves
        ]


def _join(
    requests: Sequence[LookupPlan], data: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    return cast(tuple[torch.Tensor, ...], _Join.apply(requests, data, *leaves))  # type: ignore[no-untyped-call]


class _Join(torch.autograd.Function):
    """From the leaves of all nodes to the embeddings of all tables.

    Views and `unbind` would do the same for whole tables, but a leaf that has pieces of split tables as well
    would then collect its gradient from several tensors of its size; here each gradient is written once.
    """

    @staticmethod
    def forward(
        ctx: Any, requests: Sequence[LookupPlan], data: Sequence[torch.Tensor], *leaves: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.requests, ctx.dim = requests, leaves[0].shape[1]
        tables: dict[int, torch.Tensor] = {}
        for request, values in zip(requests, data, strict=True):
            at = len(request.whole) * request.batch
            whole = values[:at].view(len(request.whole), request.batch, ctx.dim)
            tables.update(zip(request.whole, whole.unbind(0), strict=True))
            for table, positions in zip(request.cut, request.positions, strict=True):
                if table not in tables:
                    tables[table] = torch.empty(request.batch, ctx.dim)
                tables[table].index_copy_(0, torch.from_numpy(positions), values[at : at + len(positions)])
                at += len(positions)
        return tuple(tables[table] for table in range(len(tables)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return (None, None, *(_gradient_of(request, gradients, ctx.dim) for request in ctx.requests))


def _gradient_of(request: LookupPlan, gradients: Sequence[torch.Tensor | None], dim: int) -> torch.Tensor:
    """The gradient of one node's leaf, float32 [N, dim], from those of the tables."""
    result = torch.empty(len(request.rows), dim)
    at = len(request.whole) * request.batch
    whole = [gradients[table] for table in request.whole]
    known = [gradient for gradient in whole if gradient is not None]
    block = result[:at].view(len(whole), request.batch, dim)
    if whole and len(known) == len(whole):
        torch.stack(known, out=block)
    else:
        for place, gradient in zip(block, whole, strict=True):
            place.zero_() if gradient is None else place.copy_(gradient)
    for table, positions in zip(request.cut, request.positions, strict=True):
        part, gradient = result[at : at + len(positions)], gradients[table]
        if gradient is None:
            part.zero_()
        else:
            torch.index_select(gradient, 0, torch.from_numpy(positions), out=part)
        at += len(positions)
    return result
