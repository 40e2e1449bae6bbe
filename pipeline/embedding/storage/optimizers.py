"""Optimizers of embedding rows.

In a push an optimizer sees each distinct row once, with the sum of its gradients. The new value of a row does
not depend on the other rows of the call, to the bit, so nodes may divide their rows over threads.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ...config.row_bytes import row_states
from .row_storage import RowMemory

EPSILON: Final = 1e-8
BETA_1: Final = 0.9
BETA_2: Final = 0.999


class RowOptimizer(Protocol):
    """An optimizer of rows, which turns gradients into steps.

    Each row is used by one thread at a time; several threads may use different rows.
    """

    @property
    def state(self) -> dict[str, NDArray[np.float32]]:
        """Return the arrays for a checkpoint by name, each [rows, ...]; not copies."""
        ...

    def step(self, rows: torch.Tensor, gradients: torch.Tensor, scale: float) -> torch.Tensor:
        """Update the state; return what to add to the rows, float32 [M, dim], contiguous.

        Args:
            rows: int64 [M], distinct.
            gradients: float32 [M, dim], contiguous; overwritten.
            scale: the learning rate of this step is `scale * lr`.
        """
        ...


class RowSgd:
    """SGD: `w -= lr * g`."""

    def __init__(self, lr: float) -> None:
        self._lr = lr

    @property
    def state(self) -> dict[str, NDArray[np.float32]]:
        return {}

    def step(
        self,
        rows: torch.Tensor,  # noqa: ARG002 - the protocol's
        gradients: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        return gradients.mul_(-self._lr * scale)


class RowWiseAdagrad:
    """Row-wise Adagrad: one number of state a row.

    `s += mean(g^2)` over the row, then `w -= lr * g / (sqrt(s) + 1e-8)`. Source: RWSAdagrad of the DLRM
    reference code (facebookresearch/dlrm, optim/rwsadagrad.py); the same rule as FBGEMM's
    EXACT_ROWWISE_ADAGRAD.
    """

    def __init__(self, rows: int, lr: float) -> None:
        self._lr = lr
        self._sums = RowMemory((rows,), np.float32)

    @property
    def state(self) -> dict[str, NDArray[np.float32]]:
        return {"adagrad_sums": self._sums.values}

    def step(self, rows: torch.Tensor, gradients: torch.Tensor, scale: float) -> torch.Tensor:
        positions, values = rows.numpy(), gradients.numpy()
        # Not a matrix product, whose rounding of a row may depend on the other rows. This is also faster.
        sums = np.einsum("ij,ij->i", values, values)
        sums *= np.float32(1.0 / values.shape[1])
        sums += self._sums.take(positions)
        self._sums.put(positions, sums)
        factors = torch.from_numpy(sums).sqrt_().add_(EPSILON).reciprocal_().mul_(-self._lr * scale)
        return gradients.mul_(factors[:, None])


class RowAdagrad:
    """Adagrad: `dim` numbers of state a row.

    `s += g^2`, then `w -= lr * g / (sqrt(s) + 1e-8)`, float by float. Source: Duchi, Hazan, Singer: Adaptive
    Subgradient Methods (JMLR 12, 2011), the diagonal form of section 1.1. torch.optim.Adagrad without decay
    has the same rule, with another epsilon.
    """

    def __init__(self, rows: int, dim: int, lr: float) -> None:
        self._lr = lr
        self._squares = RowMemory((rows, dim), np.float32)

    @property
    def state(self) -> dict[str, NDArray[np.float32]]:
        return {"adagrad_squares": self._squares.values}

    def step(self, rows: torch.Tensor, gradients: torch.Tensor, scale: float) -> torch.Tensor:
        positions = rows.numpy()
        squares = torch.from_numpy(self._squares.take(positions)).addcmul_(gradients, gradients)
        self._squares.put(positions, squares.numpy())
        factors = squares.sqrt_().add_(EPSILON).reciprocal_().mul_(-self._lr * scale)
        return gradients.mul_(factors)


class LazyAdam:
    """Lazy Adam: rows without a gradient in a push keep values and moments.

    `m = 0.9 m + 0.1 g`, `v = 0.999 v + 0.001 g^2`, `w -= lr * (m / (1 - 0.9^t)) / (sqrt(v / (1 - 0.999^t)) +
    1e-8)`. `t` counts the row's own steps, so the correction is right also for a row that comes first late in
    the job. `2 dim + 1` numbers of state a row.

    Source: Kingma, Ba: Adam (arXiv 1412.6980), algorithm 1. torch.optim.SparseAdam is lazy too, but its `t`
    counts the steps of the whole table.
    """

    def __init__(self, rows: int, dim: int, lr: float) -> None:
        self._lr = lr
        self._means = RowMemory((rows, dim), np.float32)
        self._squares = RowMemory((rows, dim), np.float32)
        # A float32 counts up to 2^24; both corrections are 1 long before that.
        self._steps = RowMemory((rows,), np.float32)

    @property
    def state(self) -> dict[str, NDArray[np.float32]]:
        return {
            "adam_means": self._means.values,
            "adam_squares": self._squares.values,
            "adam_steps": self._steps.values,
        }

    def step(self, rows: torch.Tensor, gradients: torch.Tensor, scale: float) -> torch.Tensor:
        positions = rows.numpy()
        steps = torch.from_numpy(self._steps.take(positions)).add_(1.0)
        self._steps.put(positions, steps.numpy())
        means = torch.from_numpy(self._means.take(positions)).mul_(BETA_1).add_(gradients, alpha=1.0 - BETA_1)
        self._means.put(positions, means.numpy())
        squares = torch.from_numpy(self._squares.take(positions)).mul_(BETA_2)
        squares.addcmul_(gradients, gradients, value=1.0 - BETA_2)
        self._squares.put(positions, squares.numpy())
        # 1 - beta^t, without cancellation at small t.
        of_means = torch.expm1(steps * log(BETA_1)).neg_()
        of_squares = torch.expm1(steps * log(BETA_2)).neg_()
        roots = squares.div_(of_squares[:, None]).sqrt_().add_(EPSILON)
        return means.mul_((-self._lr * scale / of_means)[:, None]).div_(roots)


OPTIMIZERS: Final[dict[str, Callable[[int, int, float], RowOptimizer]]] = {
    "sgd": lambda _rows, _dim, lr: RowSgd(lr),
    "rowwise_adagrad": lambda rows, _dim, lr: RowWiseAdagrad(rows, lr),
    "adagrad": RowAdagrad,
    "adam": LazyAdam,
}


def make_row_optimizer(name: str, rows: int, dim: int, lr: float) -> RowOptimizer:
    """Return a new optimizer for `rows` of `dim` floats.

    Raises JobFileError for an unknown name.
    """
    row_states(name)
    return OPTIMIZERS[name](rows, dim, lr)
