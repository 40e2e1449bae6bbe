"""One node's share of all tables: a flat store of rows with the state of their optimizer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from ..data.batch import Float32Array, Int32Array
from ..errors import CheckpointError, ResourceError
from .floats import Floats, float_rows
from .optimizers import make_row_optimizer, state_bytes_per_row
from .plan import TablePlan
from .rows import default_scale, row_values

FILL_ROWS = 65_536


class ShardStore:
    """The rows of one embedding node.

    Owned by one thread (the node's service thread), which is the only one to read or write its rows
    (contract 3), so nothing is locked. That thread should run torch with one thread: the operations are
    bound by memory latency and too short to share.

    Attributes:
        node: which node's rows these are.
        rows: how many.
        dim: floats in a row.
    """

    def __init__(
        self,
        plan: TablePlan,
        node: int,
        *,
        seed: int,
        optimizer: str,
        lr: float,
        memory_fraction: float,
        init_scale: float | None = None,
    ) -> None:
        """Allocates and initializes the rows; nothing is allocated if they do not fit.

        Args:
            plan: the split of all tables.
            node: which node this is.
            seed: the seed of the run; with the table and the row, it alone decides the first values.
            optimizer: a key of `optimizers.OPTIMIZERS`.
            lr: the learning rate.
            memory_fraction: how much of the memory that is available now may be taken.
            init_scale: first values are uniform in [-init_scale, init_scale); `rows.default_scale` of each
                table without it.

        Raises:
            ResourceError: the rows and their state do not fit into memory.
            JobFileError: no such optimizer.
        """
        self.node, self.rows, self.dim = node, plan.rows_of(node), plan.dim
        _require_memory(self.rows, self.dim, state_bytes_per_row(optimizer), memory_fraction, node)
        # numpy's memory, since it asks the kernel for huge pages and torch's does not.
        self._weights: Float32Array = np.empty((self.rows, self.dim), np.float32)
        self._tensor = torch.from_numpy(self._weights)
        self._optimizer = make_row_optimizer(optimizer, self.rows, lr)
        self._places = np.arange(0, dtype=np.int64)
        for piece in plan.pieces_of(node):
            scale = default_scale(plan.table_rows[piece.table]) if init_scale is None else init_scale
            for start in range(piece.start, piece.stop, FILL_ROWS):
                numbers = np.arange(start, min(start + FILL_ROWS, piece.stop))
                at = piece.offset + start - piece.start
                target = self._weights[at : at + len(numbers)]
                row_values(seed, piece.table, numbers, self.dim, scale, out=target)

    def lookup(self, rows: Int32Array, out: Float32Array) -> None:
        """Copies rows into `out`.

        Args:
            rows: int32 [N], local to this node, in any order, repeats allowed.
            out: float32 [N, dim], C-contiguous.

        Raises:
            ValueError: a row that this node does not have, or another shape or type; `out` is then untouched.
        """
        self._require_rows(rows)
        if out.shape != (len(rows), self.dim) or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise ValueError(
                f"out must be C-contiguous float32 {[len(rows), self.dim]}, not {out.dtype} {list(out.shape)}"
            )
        # The rows are in range: "clip" only spares numpy a buffered copy and its own check.
        np.take(self._weights, rows, axis=0, out=out, mode="clip")

    def apply(self, rows: Int32Array, gradients: Floats) -> None:
        """Sums the gradients of each distinct row, in the order given, and lets the optimizer step it once.

        Args:
            rows: int32 [N], local to this node, in any order, repeats allowed.
            gradients: float32 [N, dim], C-contiguous; not changed.

        Raises:
            ValueError: a row that this node does not have, or another shape or type; nothing is then changed.
        """
        self._require_rows(rows)
        values = float_rows(gradients, len(rows), self.dim, "gradients")
        if not len(rows):
            return
        with torch.inference_mode():
            distinct, sums = self._summed(rows, values)
            self._optimizer.step(self._tensor, distinct, sums)

    def _summed(self, rows: Int32Array, gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The distinct rows, int64 [M], ascending, and the sums of their gradients, float32 [M, dim]."""
        if len(self._places) < len(rows):
            self._places = np.arange(len(rows), dtype=np.int64)
        # Row and place in one number: numpy sorts numbers by vector instructions, but not by an index.
        keys = rows.astype(np.int64)
        keys <<= 32
        keys |= self._places[: len(rows)]
        keys.sort()
        order = keys & 0xFFFFFFFF
        keys >>= 32
        first = np.empty(len(rows), np.bool_)
        first[0] = True
        np.not_equal(keys[1:], keys[:-1], out=first[1:])
        begins = np.flatnonzero(first)
        sums = torch.nn.functional.embedding_bag(
            torch.from_numpy(order), gradients, torch.from_numpy(begins), mode="sum"
        )
        return torch.from_numpy(keys[begins]), sums

    def _require_rows(self, rows: Int32Array) -> None:
        if rows.ndim != 1 or rows.dtype != np.int32:
            raise ValueError(f"rows must be int32 [N], not {rows.dtype} {list(rows.shape)}")
        # Taken as unsigned, a negative number is too large.
        if len(rows) and int(rows.view(np.uint32).max()) >= self.rows:
            wrong = rows[(rows < 0) | (rows >= self.rows)]
            raise ValueError(
                f"row {int(wrong[0])} ({len(wrong)} in all) is not one of node {self.node}'s {self.rows}"
            )

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """For a checkpoint: "weights" [rows, dim] and the optimizer's state [rows], by name.

        These are the store's own memory, not copies: only the owning thread may use them, before it applies
        anything more.
        """
        return {"weights": self._weights, **self._optimizer.state}

    def load(self, tensors: Mapping[str, NDArray[np.float32]], *, start: int = 0) -> None:
        """Copies rows [start, start + n) of every tensor that `tensors()` names, and checks all before any.

        Raises:
            CheckpointError: a tensor is absent, unknown, or of another shape or type.
        """
        own = self.tensors()
        if tensors.keys() != own.keys():
            raise CheckpointError(
                f"embedding node {self.node} has {', '.join(own)}, not {', '.join(tensors) or 'nothing'}",
                remedy="restore with the embedding.optimizer that it was saved with",
            )
        stop = start + len(tensors["weights"])
        for name, values in tensors.items():
            target = own[name][start:stop] if 0 <= start < self.rows else own[name][:0]
            if values.shape != (stop - start, *own[name].shape[1:]) or target.shape != values.shape:
                raise CheckpointError(
                    f"{name} {list(values.shape)} from row {start} does not fit {list(own[name].shape)}",
                    where=f"embedding node {self.node}",
                    remedy="restore with the model.table_rows and embedding.nodes that it was saved with",
                )
            if values.dtype != np.float32:
                raise CheckpointError(
                    f"{name} is {values.dtype}, not float32", where=f"embedding node {self.node}"
                )
        for name, values in tensors.items():
            own[name][start:stop] = values


def _require_memory(rows: int, dim: int, state_bytes: int, fraction: float, node: int) -> None:
    weights_bytes, optimizer_bytes = rows * dim * 4, rows * state_bytes
    available = int(psutil.virtual_memory().available)
    needed, allowed = weights_bytes + optimizer_bytes, int(available * fraction)
    if needed > allowed:
        raise ResourceError(
            f"the tables need {rows:,} rows x {dim} x 4 bytes = {weights_bytes:,} bytes and "
            f"{optimizer_bytes:,} bytes of optimizer state, {needed / 2**30:.2f} GiB, but "
            f"{fraction:g} (embedding.memory_fraction) of the {available:,} bytes available is "
            f"{allowed / 2**30:.2f} GiB",
            where=f"embedding node {node}",
            remedy="raise embedding.nodes on more hosts, or lower model.table_rows or model.embedding_dim",
        )
