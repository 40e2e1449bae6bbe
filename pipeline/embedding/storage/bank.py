"""One bank: rows of one width, optimizer, rate and storage."""

from __future__ import annotations

import numpy as np
import torch

from ...types import Float32Array, IndexArray, Int32Array
from ..placement.plan import Bank
from ..placement.ranges import WEIGHTS
from .optimizers import make_row_optimizer
from .row_storage import RowArray, make_row_storage


class RowBank:
    """The rows of one bank of a node, with their state.

    All values are zero at first. Each row is used by one thread at a time; several threads may use different
    rows (rule "One writer a row").

    Args:
        node: the node's number, for error messages.
        rows: number of rows; may be 0.
        bank: dim, optimizer, rate and storage.

    Raises:
        JobFileError: an unknown optimizer.

    Attributes:
        change_epoch: the current change epoch, at least 1, which `apply` notes for the rows that it changes.
        changed_at: uint8 [rows], the change epoch of each row's last change; 0 for no change.
    """

    def __init__(self, node: int, rows: int, bank: Bank) -> None:
        self.node, self.rows, self.dim = node, rows, bank.dim
        self.change_epoch = 1
        # A byte a row, not a bit, because threads change neighbouring rows at the same time.
        self.changed_at = np.zeros(rows, np.uint8)
        self._storage = make_row_storage(bank.storage, rows, bank.dim)
        self._optimizer = make_row_optimizer(bank.optimizer, rows, bank.dim, bank.lr)

    @property
    def weights(self) -> RowArray:
        """Return the rows, float32 [rows, dim]: the bank's own memory, not a copy."""
        return self._storage.values

    def arrays(self) -> dict[str, RowArray]:
        """Return "weights" [rows, dim] and the optimizer's state [rows, ...], by name.

        The arrays are the bank's own memory, not copies.
        """
        return {WEIGHTS: self.weights, **self._optimizer.state}

    def restart(self, rows: IndexArray, values: Float32Array) -> None:
        """Give rows first values, and the optimizer's first state.

        `rows` is int64 [M], distinct; `values` is float32 [M, dim].
        """
        self._storage.put(rows, values)
        for state in self._optimizer.state.values():
            state[rows] = 0.0
        self.changed_at[rows] = self.change_epoch

    def lookup(self, rows: Int32Array, out: Float32Array, positions: IndexArray | None = None) -> None:
        """Copy rows into `out`.

        Args:
            rows: int32 [N], checked by `check_rows`.
            out: float32 [N, dim], C-contiguous.
            positions: int64 [M], distinct: indices of the rows to copy, here and in `out`; all by default.
        """
        if positions is None:
            self._storage.take(rows, out)
            return
        part = np.empty((len(positions), self.dim), np.float32)
        self._storage.take(rows[positions], part)
        # As one value of all its bytes, a row is copied at once.
        whole = np.dtype((np.void, part.itemsize * self.dim))
        out.view(whole)[positions] = part.view(whole)

    def apply(
        self, rows: Int32Array, gradients: torch.Tensor, positions: IndexArray | None, scale: float, key: int
    ) -> None:
        """Sum the gradients of each distinct row in order, and step the row once.

        Args:
            rows: int32 [N], checked by `check_rows`.
            gradients: float32 [G, dim], contiguous; not changed.
            positions: int64 [N], index of each row's gradient; by default G is N, and each row has its own.
            scale: see `RowOptimizer.step`.
            key: see `RowStorage.add`.
        """
        if not len(rows):
            return
        with torch.inference_mode():
            distinct, sums = _sum_by_row(rows, gradients, positions)
            self._storage.add(distinct, self._optimizer.step(distinct, sums, scale), key)
            self.changed_at[distinct.numpy()] = self.change_epoch

    def check_rows(self, rows: Int32Array) -> None:
        """Raise ValueError unless `rows` is int32 [N] of this bank's rows."""
        if rows.ndim != 1 or rows.dtype != np.int32:
            raise ValueError(f"rows must be int32 [N], not {rows.dtype} {list(rows.shape)}")
        # As an unsigned number, a negative row number is too large.
        if len(rows) and int(rows.view(np.uint32).max()) >= self.rows:
            wrong = rows[(rows < 0) | (rows >= self.rows)]
            raise ValueError(
                f"row {int(wrong[0])} ({len(wrong)} in all) is outside of the {self.rows} rows of node "
                f"{self.node}"
            )


def _sum_by_row(
    rows: Int32Array, gradients: torch.Tensor, positions: IndexArray | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return distinct rows, int64 [M], ascending, and their gradients' sums.

    The sums are float32 [M, dim].
    """
    # Row and position in one number, because NumPy sorts plain numbers with vector instructions.
    keys = np.left_shift(rows, 32, dtype=np.int64)
    keys |= np.arange(len(rows), dtype=np.int64) if positions is None else positions
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
