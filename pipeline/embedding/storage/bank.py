"""Rows that share their width, optimizer, rate and storage: one flat store with their optimizer's state."""

from __future__ import annotations

import numpy as np
import torch

from ...types import Float32Array, IndexArray, Int32Array
from ..placement.plan import Bank
from ..placement.ranges import WEIGHTS
from .optimizers import make_row_optimizer
from .row_storage import RowArray, make_row_storage


class RowBank:
    """The rows of one bank of a node, zeros at first.

    A row is used by one thread at a time; different rows may be by several (contract 3).

    Args:
        node: which node this is, for messages.
        rows: how many; may be 0.
        bank: dim, optimizer, rate and storage.

    Raises:
        JobFileError: no such optimizer.
    """

    def __init__(self, node: int, rows: int, bank: Bank) -> None:
        self.node, self.rows, self.dim = node, rows, bank.dim
        self._storage = make_row_storage(bank.storage, rows, bank.dim)
        self._optimizer = make_row_optimizer(bank.optimizer, rows, bank.dim, bank.lr)

    @property
    def weights(self) -> RowArray:
        """float32 [rows, dim]: the bank's own memory."""
        return self._storage.values

    def arrays(self) -> dict[str, RowArray]:
        """ "weights" [rows, dim] and the optimizer's state [rows, ...] by name: the bank's own memory."""
        return {WEIGHTS: self.weights, **self._optimizer.state}

    def lookup(self, rows: Int32Array, out: Float32Array, own: IndexArray | None = None) -> None:
        """Copies rows into `out`.

        Args:
            rows: int32 [N], which `require` took.
            out: float32 [N, dim], C-contiguous.
            own: int64 [M], distinct: which of the N; all without it.
        """
        if own is None:
            self._storage.take(rows, out)
            return
        part = np.empty((len(own), self.dim), np.float32)
        self._storage.take(rows[own], part)
        # A row as one value of so many bytes: numpy then copies it at once.
        whole = np.dtype((np.void, part.itemsize * self.dim))
        out.view(whole)[own] = part.view(whole)

    def apply(
        self, rows: Int32Array, gradients: torch.Tensor, places: IndexArray | None, scale: float, key: int
    ) -> None:
        """Sums the gradients of each distinct row, in the order given, and lets the optimizer step it once.

        Args:
            rows: int32 [N], which `require` took.
            gradients: float32 [G, dim], contiguous; not changed.
            places: int64 [N], which of the gradients each row gets; without it G is N, one each.
            scale: see `RowOptimizer.step`.
            key: see `RowStorage.add`.
        """
        if not len(rows):
            return
        with torch.inference_mode():
            distinct, sums = _sum_by_row(rows, gradients, places)
            self._storage.add(distinct, self._optimizer.step(distinct, sums, scale), key)

    def require(self, rows: Int32Array) -> None:
        """Raises ValueError for what is not int32 [N], and for a row that is not here."""
        if rows.ndim != 1 or rows.dtype != np.int32:
            raise ValueError(f"rows must be int32 [N], not {rows.dtype} {list(rows.shape)}")
        # Taken as unsigned, a negative number is too large.
        if len(rows) and int(rows.view(np.uint32).max()) >= self.rows:
            wrong = rows[(rows < 0) | (rows >= self.rows)]
            raise ValueError(
                f"row {int(wrong[0])} ({len(wrong)} in all) is not one of node {self.node}'s {self.rows}"
            )


def _sum_by_row(
    rows: Int32Array, gradients: torch.Tensor, places: IndexArray | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct rows, int64 [M], ascending, and the sums of their gradients, float32 [M, dim]."""
    # Row and place in one number: numpy sorts numbers by vector instructions, but not by an index.
    keys = np.left_shift(rows, 32, dtype=np.int64)
    keys |= np.arange(len(rows), dtype=np.int64) if places is None else places
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
