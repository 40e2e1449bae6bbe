"""The optimizers of rows against float64 closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from shadowsync.pipeline.data.batch import Float32Array
from shadowsync.pipeline.embedding.optimizers import (
    OPTIMIZERS,
    RowOptimizer,
    make_row_optimizer,
    state_bytes_per_row,
)
from shadowsync.pipeline.errors import JobFileError

ROWS, DIM, LR = 40, 6, 0.05


def run(optimizer: RowOptimizer, steps: int) -> tuple[Float32Array, Float32Array, Float32Array]:
    """The rows before, the rows after, and the gradients [steps, ROWS, DIM] (0: not in the step)."""
    draw = np.random.default_rng(3)
    before = draw.standard_normal((ROWS, DIM)).astype(np.float32)
    weights = torch.from_numpy(before.copy())
    history = np.zeros((steps, ROWS, DIM), np.float32)
    for step in range(steps):
        rows = draw.permutation(ROWS)[: draw.integers(1, ROWS)]
        history[step, rows] = draw.standard_normal((len(rows), DIM)) * 10.0 ** draw.integers(-4, 2)
        optimizer.step(weights, torch.from_numpy(rows), torch.from_numpy(history[step, rows]))
    return before, weights.numpy(), history


def test_sgd_is_its_closed_form() -> None:
    before, after, history = run(make_row_optimizer("sgd", ROWS, LR), 12)
    wanted = before - LR * history.astype(np.float64).sum(0)
    np.testing.assert_allclose(after, wanted, rtol=1e-5, atol=1e-5)


def test_rowwise_adagrad_is_its_closed_form() -> None:
    optimizer = make_row_optimizer("rowwise_adagrad", ROWS, LR)
    before, after, history = run(optimizer, 12)
    exact = history.astype(np.float64)
    sums = (exact**2).mean(2).cumsum(0)
    wanted = before - (LR * exact / (np.sqrt(sums) + 1e-8)[:, :, None]).sum(0)
    np.testing.assert_allclose(after, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(optimizer.state["adagrad_sums"], sums[-1], rtol=1e-5)
    # The control: element-wise Adagrad is another optimizer, and the tolerance tells them apart.
    elementwise = before - (LR * exact / (np.sqrt((exact**2).cumsum(0)) + 1e-8)).sum(0)
    assert np.abs(after - elementwise).max() > 0.01


def test_a_zero_gradient_changes_nothing() -> None:
    weights = torch.ones(3, 2)
    make_row_optimizer("rowwise_adagrad", 3, LR).step(weights, torch.tensor([1]), torch.zeros(1, 2))
    assert torch.equal(weights, torch.ones(3, 2))


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_the_stated_state_is_what_it_keeps(name: str) -> None:
    state = make_row_optimizer(name, ROWS, LR).state
    assert sum(array.nbytes for array in state.values()) == ROWS * state_bytes_per_row(name)


def test_an_unknown_name_is_an_error_that_names_the_key() -> None:
    wanted = r'^embedding\.optimizer: no optimizer "adam"; give one of sgd, rowwise_adagrad$'
    with pytest.raises(JobFileError, match=wanted):
        make_row_optimizer("adam", 1, LR)
    with pytest.raises(JobFileError, match=wanted):
        state_bytes_per_row("adam")
