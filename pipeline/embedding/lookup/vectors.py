"""Tensors over memory that came from elsewhere: arrays, tensors, or the buffers of received messages.

The embeddings of one batch as autograd sees them, and their gradients as the nodes want them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

from ...types import Float32Array
from .gather_indices import BankIndices, GatherIndices
from .request import LookupPlan

FloatBuffer: TypeAlias = NDArray[np.float32] | torch.Tensor | memoryview | bytearray | bytes
"""Floats one after the other, of any shape: C-contiguous, 4-byte aligned."""


def flat_floats(values: FloatBuffer, count: int, what: str) -> torch.Tensor:
    """A float32 tensor [count] on the memory of `values`, copied only if that is read-only.

    Any thread may call this; `what` names the values in the ValueError that another size or type raises.
    """
    wanted = f"{count} of float32, C-contiguous"
    if isinstance(values, torch.Tensor):
        if values.dtype != torch.float32 or values.numel() != count or not values.is_contiguous():
            raise ValueError(f"{what}: {values.dtype} {list(values.shape)}, not {wanted}")
        return values.detach().view(-1)
    if isinstance(values, np.ndarray):
        if values.dtype != np.float32 or values.size != count or not values.flags.c_contiguous:
            raise ValueError(f"{what}: {values.dtype} {list(values.shape)}, not {wanted}")
        array = values.reshape(-1)
    else:
        view = memoryview(values)
        if view.nbytes != count * 4:
            raise ValueError(f"{what}: {view.nbytes} bytes, not {count * 4} for {wanted}")
        array = np.frombuffer(view, np.float32)
    # torch has no read-only tensors, and numpy's buffers over `bytes` are.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


class BatchEmbeddings:
    """One batch's embeddings. Used by the worker thread that trains the batch.

    Attributes:
        leaves: for each node a leaf, float32 [floats of its request], requiring a gradient: on the memory of
            its answer, or a copy of that on the device.
        embeddings: for each table float32 [B, dim], by autograd from the leaves: those of whole tables are on
            the leaves' memory too, unless only distinct rows were asked for, whose vectors are copied to all
            examples that have them; those of split tables are gathered from their pieces; with bags it is the
            sum of what the nodes answered, divided for a mean. Not to be changed in place. A model that wants
            them side by side does best to `torch.cat` them along dimension 1 with whatever else goes there.
    """

    def __init__(
        self,
        requests: Sequence[LookupPlan],
        answers: Sequence[FloatBuffer],
        tables: int,
        device: torch.device,
    ) -> None:
        data = [
            flat_floats(answer, request.floats, f"the answer of embedding node {request.node}").to(
                device, non_blocking=True
            )
            for request, answer in zip(requests, answers, strict=True)
        ]
        self.leaves: list[torch.Tensor] = [values.detach().requires_grad_() for values in data]
        routes = GatherIndices(requests, tables, device)
        self._targets: list[Float32Array | None] = [None] * len(data)
        self.embeddings: list[torch.Tensor] = list(_join(routes, data, self._targets, self.leaves))

    def gradients_into(self, targets: Sequence[Float32Array | None]) -> None:
        """Before the backward pass, on the CPU: memory for the gradients of each node, float32 [floats of its
        request], C-contiguous, which `gradients` then gives; None for memory of its own. It is written once.
        """
        self._targets[:] = targets

    def gradients(self) -> list[Float32Array]:
        """After the backward pass: for each node float32 [floats of its request], in the order of its rows.

        Embeddings that the loss does not hang on have zeros. The arrays are the caller's, on the CPU; nothing
        else writes to them. From a device this waits until the backward pass is over.
        """
        return [
            np.zeros(len(leaf), np.float32) if leaf.grad is None else leaf.grad.cpu().numpy()
            for leaf in self.leaves
        ]


def _join(
    routes: GatherIndices,
    data: Sequence[torch.Tensor],
    targets: list[Float32Array | None],
    leaves: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    joined = _Join.apply(routes, data, targets, *leaves)  # type: ignore[no-untyped-call]
    return cast(tuple[torch.Tensor, ...], joined)


class _Join(torch.autograd.Function):
    """From the leaves of all nodes to the embeddings of all tables.

    Views and `unbind` would do the same for whole tables, but a leaf that has pieces of split tables as well
    would then collect its gradient from several tensors of its size; here each gradient is written once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        routes: GatherIndices,
        data: Sequence[torch.Tensor],
        targets: list[Float32Array | None],
        *_: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.routes, ctx.targets = routes, targets
        tables: dict[int, torch.Tensor] = {}
        for node, values in zip(routes.nodes, data, strict=True):
            for route, part in _by_bank(node, values):
                _take(route, part, tables)
        for table, divisor in routes.divisors.items():
            tables[table] = tables[table] / divisor
        return tuple(tables[table] for table in range(routes.tables))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        routes: GatherIndices = ctx.routes
        of_tables = list(gradients)
        for table, divisor in routes.divisors.items():
            gradient = of_tables[table]
            of_tables[table] = None if gradient is None else gradient / divisor
        results = []
        targets, ctx.targets[:] = list(ctx.targets), [None] * len(routes.nodes)
        for node, floats, target in zip(routes.nodes, routes.floats, targets, strict=True):
            if target is None or routes.device.type != "cpu":
                result = torch.empty(floats, device=routes.device)
            else:
                result = torch.from_numpy(target)
            for route, part in _by_bank(node, result):
                _give(route, part, of_tables)
            results.append(result)
        return (None, None, None, *results)


def _by_bank(node: Sequence[BankIndices], values: torch.Tensor) -> Iterator[tuple[BankIndices, torch.Tensor]]:
    """Each bank's part of a node's floats, [vectors, dim]."""
    at = 0
    for route in node:
        size = route.vectors * route.dim
        yield route, values[at : at + size].view(route.vectors, route.dim)
        at += size


def _take(route: BankIndices, values: torch.Tensor, tables: dict[int, torch.Tensor]) -> None:
    """Puts one bank's vectors where they belong: by table, [B, dim]."""
    single = values[: route.single]
    if route.repeats is not None:
        single = single.index_select(0, route.repeats.which)
    at = len(route.whole) * route.batch
    whole = single[:at].view(len(route.whole), route.batch, route.dim)
    tables.update(zip(route.whole, whole.unbind(0), strict=True))
    for place in route.parts:
        if place.table not in tables:
            tables[place.table] = values.new_empty(route.batch, route.dim)
        tables[place.table].index_copy_(0, place.examples, single[at : at + len(place.examples)])
        at += len(place.examples)
    at = route.single
    for table in route.bags:
        sums = values[at : at + route.batch]
        at += route.batch
        # Of a table that is split each node has a part of the sum.
        tables[table] = tables[table] + sums if table in tables else sums


def _give(route: BankIndices, result: torch.Tensor, gradients: Sequence[torch.Tensor | None]) -> None:
    """Writes the gradients of one bank's vectors, float32 [vectors, dim], from those of the tables."""
    repeats, own = route.repeats, result[: route.single]
    single = own if repeats is None else result.new_empty(route.examples, route.dim)
    at = len(route.whole) * route.batch
    _give_blocks(route, route.whole, single[:at], gradients)
    for place in route.parts:
        part, gradient = single[at : at + len(place.examples)], gradients[place.table]
        at += len(place.examples)
        if gradient is None:
            part.zero_()
        else:
            torch.index_select(gradient, 0, place.examples, out=part)
    if repeats is not None and route.single:
        own.copy_(embedding_bag(repeats.order, single, repeats.begins, mode="sum"))
    _give_blocks(route, route.bags, result[route.single :], gradients)


def _give_blocks(
    route: BankIndices, tables: Sequence[int], result: torch.Tensor, gradients: Sequence[torch.Tensor | None]
) -> None:
    """Writes the gradients of tables that have a vector for each example here."""
    own = [gradients[table] for table in tables]
    known = [gradient for gradient in own if gradient is not None]
    block = result.view(len(own), route.batch, route.dim)
    if own and len(known) == len(own):
        torch.stack(known, out=block)
        return
    for place, gradient in zip(block, own, strict=True):
        place.zero_() if gradient is None else place.copy_(gradient)
