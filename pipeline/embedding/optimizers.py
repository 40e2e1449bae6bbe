"""Optimizers of embedding rows. Each sees a distinct row once a push, with the sum of its gradients."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import JobFileError

EPSILON: Final = 1e-8


class RowOptimizer(Protocol):
    """Changes rows in place. Owned by the thread that owns the weights."""

    @property
    def state(self) -> dict[str, NDArray[np.float32]]:
        """The arrays to keep in a checkpoint, by name, each [rows, ...]; views, not copies."""
        ...

    def step(self, weights: torch.Tensor, rows: torch.Tensor, gradients: torch.Tensor) -> None:
        """Changes `weights[rows]`; overwrites `gradients`.

        Args:
            weights: float32 [R, dim].
            rows: int64 [M], distinct.
            gradients: float32 [M, dim], contiguous.
        """
        ...


class RowSgd:
    """`w -= lr * g`."""

    STATE_BYTES_PER_ROW: Final = 0

    def __init__(self, lr: float) -> None:
        self._lr = lr

    @property
    def state(self) -> dict[str, NDArray[np.float32]]:
        return {}

    def step(self, weights: torch.Tensor, rows: torch.Tensor, gradients: torch.Tensor) -> None:
        """See `RowOptimizer.step`."""
        _add_rows(weights, rows, gradients.mul_(-self._lr))


class RowWiseAdagrad:
    """`s += mean(g^2)` over the row, then `w -= lr * g / (sqrt(s) + 1e-8)`: one number of state a row.

    Source: RWSAdagrad of the DLRM reference code (facebookresearch/dlrm, optim/rwsadagrad.py); the same rule
    as FBGEMM's EXACT_ROWWISE_ADAGRAD.
    """

    STATE_BYTES_PER_ROW: Final = 4

    def __init__(self, rows: int, lr: float) -> None:
        self._lr = lr
        self._sums = np.zeros(rows, np.float32)
        self._sums_tensor = torch.from_numpy(self._sums)

    @property
    def state(self) -> dict[str, NDArray[np.float32]]:
        return {"adagrad_sums": self._sums}

    def step(self, weights: torch.Tensor, rows: torch.Tensor, gradients: torch.Tensor) -> None:
        """See `RowOptimizer.step`."""
        # A matrix product sums the rows of the squares faster than a reduction over a short last axis.
        mean = torch.full((gradients.shape[1],), 1.0 / gradients.shape[1])
        sums = self._sums_tensor.index_select(0, rows)
        sums += torch.mv(gradients.square(), mean)
        self._sums_tensor.index_copy_(0, rows, sums)
        factors = sums.sqrt_().add_(EPSILON).reciprocal_().mul_(-self._lr)
        _add_rows(weights, rows, gradients.mul_(factors[:, None]))


OPTIMIZERS: Final[dict[str, type[RowSgd] | type[RowWiseAdagrad]]] = {
    "sgd": RowSgd,
    "rowwise_adagrad": RowWiseAdagrad,
}


def state_bytes_per_row(name: str) -> int:
    """Bytes of state that an optimizer keeps for a row. Raises JobFileError for an unknown name."""
    return _named(name).STATE_BYTES_PER_ROW


def make_row_optimizer(name: str, rows: int, lr: float) -> RowOptimizer:
    """A new optimizer for a store of `rows`. Raises JobFileError for an unknown name."""
    kind = _named(name)
    return kind(lr) if kind is RowSgd else RowWiseAdagrad(rows, lr)


def _named(name: str) -> type[RowSgd] | type[RowWiseAdagrad]:
    if name not in OPTIMIZERS:
        raise JobFileError(
            f'no optimizer "{name}"',
            where="embedding.optimizer",
            remedy=f"give one of {', '.join(OPTIMIZERS)}",
        )
    return OPTIMIZERS[name]


def _add_rows(weights: torch.Tensor, rows: torch.Tensor, steps: torch.Tensor) -> None:
    # Measured against numpy's take and assignment, index_add_ and a sparse add: the fastest, without a copy.
    weights.scatter_add_(0, rows[:, None].expand_as(steps), steps)
