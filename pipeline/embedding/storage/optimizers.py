"""Optimizers of embedding rows.

In a push an optimizer sees each distinct row once, with the sum of its gradients. The new value of a row does
not depend on the other rows of the call, to the bit, so nodes may divide their rows over threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ...config.row_bytes import row_states
from .row_storage import RowMemory

EPSILON: Final = 1e-8
BETA_1: Final = 0.9
BETA_2: Final = 0.999


class RowRule(Protocol):
    """The rule of an optimizer of rows, which keeps nothing."""

    def step(self, state: Sequence[torch.Tensor], gradients: torch.Tensor, scale: float) -> torch.Tensor:
        """Return what to add to the rows, float32 [M, dim], contiguous.

        Args:
            state: the rows' own, in the order of `row_states`: float32 [M] or [M, dim], contiguous;
                overwritten by the new state.
            gradients: float32 [M, dim], contiguous; overwritten.
            scale: the learning rate of this step is `scale * lr`.
        """
        ...


class RowSgd:
    """SGD: `w -= lr * g`."""

    def __init__(self, lr: float) -> None:
        self._lr = lr

    def step(
        self,
        state: Sequence[torch.Tensor],  # noqa: ARG002 - the protocol's
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

    def __init__(self, lr: float) -> None:
        self._lr = lr

    def step(self, state: Sequence[torch.Tensor], gradients: torch.Tensor, scale: float) -> torch.Tensor:
        (sums,) = state
        values = gradients.numpy()
        # Not a matrix product, whose rounding of a row may depend on the other rows. This is also faster.
        squares = np.einsum("ij,ij->i", values, values)
        squares *= np.float32(1.0 / values.shape[1])
        sums += torch.from_numpy(squares)
        factors = sums.sqrt().add_(EPSILON).reciprocal_().mul_(-self._lr * scale)
        return gradients.mul_(factors[:, None])


class RowAdagrad:
    """Adagrad: `dim` numbers of state a row.

    `s += g^2`, then `w -= lr * g / (sqrt(s) + 1e-8)`, float by float. Source: Duchi, Hazan, Singer: Adaptive
    Subgradient Methods (JMLR 12, 2011), the diagonal form of section 1.1. torch.optim.Adagrad without decay
    has the same rule, with another epsilon.
    """

    def __init__(self, lr: float) -> None:
        self._lr = lr

    def step(self, state: Sequence[torch.Tensor], gradients: torch.Tensor, scale: float) -> torch.Tensor:
        (squares,) = state
        squares.addcmul_(gradients, gradients)
        factors = squares.sqrt().add_(EPSILON).reciprocal_().mul_(-self._lr * scale)
        return gradients.mul_(factors)


class LazyAdam:
    """Lazy Adam: rows without a gradient in a push keep values and moments.

    `m = 0.9 m + 0.1 g`, `v = 0.999 v + 0.001 g^2`, `w -= lr * (m / (1 - 0.9^t)) / (sqrt(v / (1 - 0.999^t)) +
    1e-8)`. `t` counts the row's own steps, so the correction is right also for a row that comes first late in
    the job. `2 dim + 1` numbers of state a row.

    Source: Kingma, Ba: Adam (arXiv 1412.6980), algorithm 1. torch.optim.SparseAdam is lazy too, but its `t`
    counts the steps of the whole table.
    """

    def __init__(self, lr: float) -> None:
        self._lr = lr

    def step(self, state: Sequence[torch.Tensor], gradients: torch.Tensor, scale: float) -> torch.Tensor:
        # A float32 counts up to 2^24; both corrections are 1 long before that.
        means, squares, steps = state
        steps += 1.0
        means.mul_(BETA_1).add_(gradients, alpha=1.0 - BETA_1)
        squares.mul_(BETA_2).addcmul_(gradients, gradients, value=1.0 - BETA_2)
        # 1 - beta^t, without cancellation at small t.
        of_means = torch.expm1(steps * log(BETA_1)).neg_()
        of_squares = torch.expm1(steps * log(BETA_2)).neg_()
        roots = squares.div(of_squares[:, None]).sqrt_().add_(EPSILON)
        return means.mul((-self._lr * scale / of_means)[:, None]).div_(roots)


class RowDecay:
    """Decoupled weight decay of rows, lazy: a step also takes `lr * weight_decay * w` off the row before it.

    A row without a gradient in a push keeps its values. The optimizer's state has nothing of the decay. So
    under SGD it is L2 of `weight_decay / 2 * w^2`; under the others it is not. Source: Loshchilov, Hutter:
    Decoupled Weight Decay Regularization (arXiv 1711.05101), algorithm 2; the same rule as the mode DECOUPLE
    of FBGEMM's table batched embeddings.
    """

    def __init__(self, lr: float, weight_decay: float) -> None:
        self._rate = lr * weight_decay

    def __bool__(self) -> bool:
        return self._rate > 0

    def add(self, steps: torch.Tensor, values: torch.Tensor, scale: float) -> None:
        """Add it to steps of rows, float32 [M, dim]; `values` are the rows before, and `scale` is the step's.

        A product and a sum, each rounded, so that a trainer computes what its node does, to the bit.
        """
        steps.add_(values.mul(-self._rate * scale))


RULES: Final[dict[str, Callable[[float], RowRule]]] = {
    "sgd": RowSgd,
    "rowwise_adagrad": RowWiseAdagrad,
    "adagrad": RowAdagrad,
    "adam": LazyAdam,
}


def make_row_rule(name: str, lr: float) -> RowRule:
    """Return an optimizer's rule; raises JobFileError for an unknown name."""
    row_states(name)
    return RULES[name](lr)


class RowOptimizer:
    """An optimizer of rows with their state, which turns gradients into steps.

    Each row is used by one thread at a time; several threads may use different rows.

    Args:
        name: a key of `RULES`.
        rows: number of rows, of `dim` floats.
        lr: the learning rate.

    Raises:
        JobFileError: an unknown name.

    Attributes:
        memories: the state by name, in the order of `row_states`.
    """

    def __init__(self, name: str, rows: int, dim: int, lr: float) -> None:
        self._rule = make_row_rule(name, lr)
        self.memories = {
            state.name: RowMemory(state.shape(rows, dim), np.float32) for state in row_states(name)
        }

    @property
    def state(self) -> dict[str, NDArray[np.float32]]:
        """Return the arrays for a checkpoint by name, each [rows, ...]; not copies."""
        return {name: memory.values for name, memory in self.memories.items()}

    def state_of(self, rows: NDArray[Any]) -> list[NDArray[np.float32]]:
        """Return copies of the state of rows int32 or int64 [N], each [N, ...], in the order of `state`."""
        return [memory.take(rows) for memory in self.memories.values()]

    def step(self, rows: torch.Tensor, gradients: torch.Tensor, scale: float) -> torch.Tensor:
        """Update the state; return what to add to the rows, float32 [M, dim], contiguous.

        Args:
            rows: int64 [M], distinct.
            gradients: float32 [M, dim], contiguous; overwritten.
            scale: see `RowRule.step`.
        """
        positions = rows.numpy()
        state = self.state_of(positions)
        steps = self._rule.step([torch.from_numpy(values) for values in state], gradients, scale)
        for memory, values in zip(self.memories.values(), state, strict=True):
            memory.put(positions, values)
        return steps
