"""From ids to vectors in autograd, and from their gradients to pushes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

import numpy as np
import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ...pipeline.config.tables import TableSettings
from ...pipeline.embedding.lookup.vectors import BatchEmbeddings
from ...pipeline.types import Float32Array, Int32Array
from ..errors import AttachError

Pooling: TypeAlias = Literal["sum", "mean"]

DIMENSIONS_OF_BAGS: Final = 2


@dataclass(frozen=True, eq=False)
class DistinctIds:
    """The ids of one table, and its distinct rows among them.

    Attributes:
        rows: int32 [N], ascending.
        places: int64, of the shape of the ids: the index in `rows` of each id; N for what is left out.
    """

    rows: Int32Array
    places: torch.Tensor

    @classmethod
    def of(cls, table: TableSettings, ids: torch.Tensor, padding_idx: int | None) -> DistinctIds:
        """Return the distinct rows of ids.

        `ids` are int64 or int32, of any shape and on any device. Raises AttachError for another type, and for
        an id that the table does not have.
        """
        if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.int64, torch.int32):
            kind = str(ids.dtype) if isinstance(ids, torch.Tensor) else type(ids).__name__
            raise AttachError(f"{kind} given as ids; give a tensor of int64", where=f"table {table.name!r}")
        host_ids = ids.detach().to("cpu", torch.int64)
        kept = torch.ones_like(host_ids, dtype=torch.bool) if padding_idx is None else host_ids != padding_idx
        rows, inverse = torch.unique(host_ids[kept], return_inverse=True)
        if len(rows) and (int(rows[0]) < 0 or int(rows[-1]) >= table.rows):
            wrong = int(rows[0]) if int(rows[0]) < 0 else int(rows[-1])
            raise AttachError(
                f"id {wrong} given; there are {table.rows:,} rows, 0 to {table.rows - 1}",
                where=f"table {table.name!r}",
                remedy="take it modulo the rows, or give the table more",
            )
        places = torch.full_like(host_ids, len(rows))
        places[kept] = inverse
        return cls(rows.numpy().astype(np.int32), places.to(ids.device))

    def spread(self, vectors: torch.Tensor, pooling: Pooling | None) -> torch.Tensor:
        """Return each id's vector, or the pooled ones of each bag.

        Args:
            vectors: float32 [N, dim], of `rows`.
            pooling: how a bag, a row of ids of the shape [batch, length], becomes one vector. Without it, and
                for ids of the shape [batch], the result has a dimension more than the ids.
        """
        # What is left out has zeros, and no gradient.
        padded = torch.cat([vectors, vectors.new_zeros(1, vectors.shape[1])])
        if pooling is None or self.places.dim() != DIMENSIONS_OF_BAGS:
            return functional.embedding(self.places, padded)
        return functional.embedding_bag(self.places, padded, mode=pooling, padding_idx=len(vectors))


def differentiable(
    made: BatchEmbeddings, anchor: torch.Tensor, push: Callable[[Sequence[Float32Array]], None]
) -> tuple[torch.Tensor, ...]:
    """Return the embeddings as results of `anchor`; each backward pass pushes their gradients.

    Args:
        made: assembled with gradients enabled.
        anchor: any tensor that requires a gradient, so that autograd comes here.
        push: takes each node's gradients; called on the thread of the backward pass.
    """
    vectors = _Pull.apply(anchor, made, push)  # type: ignore[no-untyped-call]
    return cast(tuple[torch.Tensor, ...], vectors)


class _Pull(torch.autograd.Function):
    """Embeddings that come from nodes, and gradients that go there."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,  # noqa: ARG004 - what it requires is why autograd comes back
        made: BatchEmbeddings,
        push: Callable[[Sequence[Float32Array]], None],
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.made, ctx.push = made, push
        return tuple(embedding.detach() for embedding in made.embeddings)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, None, None]:
        made: BatchEmbeddings = ctx.made
        pairs = zip(made.embeddings, gradients, strict=True)
        known = [(embedding, gradient) for embedding, gradient in pairs if gradient is not None]
        for leaf in made.leaves:
            leaf.grad = None
        with torch.enable_grad():
            # The user's graph may be kept for another pass; then this one is, too.
            torch.autograd.backward(
                [embedding for embedding, _ in known], [gradient for _, gradient in known], retain_graph=True
            )
        ctx.push(made.gradients())
        return None, None, None
