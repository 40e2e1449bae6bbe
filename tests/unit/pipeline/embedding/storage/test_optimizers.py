"""The optimizers of rows against float64 closed forms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from shadowsync.pipeline.config.row_bytes import ROW_STATES, row_states, state_floats
from shadowsync.pipeline.embedding.storage.optimizers import RULES, RowDecay, RowOptimizer
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.types import Float32Array

ROWS, DIM, LR = 40, 6, 0.05


def run(
    optimizer: RowOptimizer, steps: int, scale: float = 1.0
) -> tuple[Float32Array, Float32Array, Float32Array]:
    """The rows before, the rows after, and the gradients [steps, ROWS, DIM] (0: not in the step)."""
    draw = np.random.default_rng(3)
    before = draw.standard_normal((ROWS, DIM)).astype(np.float32)
    weights = torch.from_numpy(before.copy())
    history = np.zeros((steps, ROWS, DIM), np.float32)
    for step in range(steps):
        rows = draw.permutation(ROWS)[: draw.integers(1, ROWS)]
        history[step, rows] = draw.standard_normal((len(rows), DIM)) * 10.0 ** draw.integers(-4, 2)
        steps_of = optimizer.step(torch.from_numpy(rows), torch.from_numpy(history[step, rows]), scale)
        weights[torch.from_numpy(rows)] += steps_of
    return before, weights.numpy(), history


SUMS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "sgd": lambda squares: np.ones_like(squares),
    "rowwise_adagrad": lambda squares: squares.mean(2, keepdims=True).cumsum(0),
    "adagrad": lambda squares: squares.cumsum(0),
}
"""The squares of what each step's gradient is divided by, from those of all gradients."""


@pytest.mark.parametrize(("name", "tolerance"), [("sgd", 1e-5), ("rowwise_adagrad", 1e-6), ("adagrad", 1e-6)])
def test_it_is_its_closed_form(name: str, tolerance: float) -> None:
    optimizer = RowOptimizer(name, ROWS, DIM, LR)
    before, after, history = run(optimizer, 12)
    exact = history.astype(np.float64)
    for other, sums_of in SUMS.items():
        sums = sums_of(exact**2)
        wanted = before - (LR * exact / (np.sqrt(sums) + 1e-8)).sum(0)
        if other != name:
            assert np.abs(after - wanted).max() > 0.01, "the control: another optimizer is told apart"
            continue
        np.testing.assert_allclose(after, wanted, rtol=1e-5, atol=tolerance)
        for values in optimizer.state.values():
            np.testing.assert_allclose(values, np.squeeze(sums[-1]), rtol=1e-5)


def lazy_adam(history: NDArray[np.float64]) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """The sum of all steps and the state after them, as algorithm 1 has it, a row at a time."""
    moved = np.zeros(history.shape[1:])
    means, squares, counts = np.zeros_like(moved), np.zeros_like(moved), np.zeros(len(moved))
    for row in range(history.shape[1]):
        for gradient in history[:, row]:
            if not gradient.any():
                continue
            counts[row] += 1
            means[row] = 0.9 * means[row] + 0.1 * gradient
            squares[row] = 0.999 * squares[row] + 0.001 * gradient**2
            mean = means[row] / (1 - 0.9 ** counts[row])
            square = squares[row] / (1 - 0.999 ** counts[row])
            moved[row] -= LR * mean / (np.sqrt(square) + 1e-8)
    return moved, {"adam_means": means, "adam_squares": squares, "adam_steps": counts}


def test_lazy_adam_is_its_closed_form() -> None:
    optimizer = RowOptimizer("adam", ROWS, DIM, LR)
    before, after, history = run(optimizer, 30)
    exact = history.astype(np.float64)
    moved, state = lazy_adam(exact)
    np.testing.assert_allclose(after - before.astype(np.float64), moved, rtol=1e-4, atol=2e-6)
    assert optimizer.state.keys() == state.keys()
    for name, values in state.items():
        np.testing.assert_allclose(optimizer.state[name], values, rtol=1e-4, atol=1e-9)
    # The rows are not all in all steps, or this would be plain Adam.
    assert 0 < state["adam_steps"].min() < state["adam_steps"].max() < 30
    # The control: torch's SparseAdam, whose count is of the whole table, is another.
    parameter = torch.nn.Parameter(torch.from_numpy(before.copy()))
    sparse = torch.optim.SparseAdam([parameter], lr=LR, eps=1e-8)
    for gradients in history:
        rows = torch.from_numpy(np.flatnonzero(gradients.any(1)))
        parameter.grad = torch.sparse_coo_tensor(
            rows[None],
            torch.from_numpy(gradients)[rows],
            (ROWS, DIM),
            is_coalesced=True,
            check_invariants=True,
        )
        sparse.step()  # type: ignore[no-untyped-call]
    assert np.abs(after - parameter.detach().numpy()).max() > 0.01


def test_rows_in_all_steps_are_those_of_sparse_adam() -> None:
    draw = np.random.default_rng(5)
    before = draw.standard_normal((ROWS, DIM)).astype(np.float32)
    parameter = torch.nn.Parameter(torch.from_numpy(before.copy()))
    sparse = torch.optim.SparseAdam([parameter], lr=LR, eps=1e-8)
    optimizer, weights, rows = RowOptimizer("adam", ROWS, DIM, LR), before.copy(), torch.arange(ROWS)
    for _ in range(20):
        gradients = torch.from_numpy(draw.standard_normal((ROWS, DIM)).astype(np.float32))
        parameter.grad = torch.sparse_coo_tensor(
            rows[None], gradients.clone(), (ROWS, DIM), is_coalesced=True, check_invariants=True
        )
        sparse.step()  # type: ignore[no-untyped-call]
        weights += optimizer.step(rows, gradients, 1.0).numpy()
    np.testing.assert_allclose(weights, parameter.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dim", [1, 6, 16, 33])
@pytest.mark.parametrize("name", sorted(RULES))
def test_a_row_is_stepped_alike_in_any_company(name: str, dim: int) -> None:
    count = 1000
    draw = np.random.default_rng(7)
    gradients = torch.from_numpy(draw.standard_normal((3, count, dim)).astype(np.float32))
    together, apart = (RowOptimizer(name, count, dim, LR) for _ in range(2))
    for gradient in gradients:
        whole = together.step(torch.arange(count), gradient.clone(), 1.0)
        for part in range(3):
            rows = torch.arange(part, count, 3)
            assert torch.equal(apart.step(rows, gradient[rows], 1.0), whole[rows])
    # The control: a matrix product sums the squares of a row by where it stands.
    squares, mean = gradients[0].square(), torch.full((dim,), 1.0 / dim)
    by_part = torch.cat([torch.mv(squares[part::3].contiguous(), mean) for part in range(3)])
    order = torch.cat([torch.arange(part, count, 3) for part in range(3)])
    if dim > 1:
        assert not torch.equal(by_part, torch.mv(squares, mean)[order])


@pytest.mark.parametrize("name", sorted(RULES))
def test_the_scale_is_of_the_rate_and_not_of_the_state(name: str) -> None:
    whole, part = (RowOptimizer(name, ROWS, DIM, LR) for _ in range(2))
    before, full, _ = run(whole, 12)
    _, scaled, _ = run(part, 12, scale=0.25)
    np.testing.assert_allclose(scaled - before, 0.25 * (full - before), rtol=1e-4, atol=1e-5)
    assert np.abs(full - scaled).max() > 0.01
    for state, values in whole.state.items():
        np.testing.assert_array_equal(part.state[state], values)


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_zero_gradient_changes_nothing(name: str) -> None:
    optimizer = RowOptimizer(name, 3, 2, LR)
    assert torch.equal(optimizer.step(torch.tensor([1]), torch.zeros(1, 2), 1.0), torch.zeros(1, 2))
    # The control: another gradient does.
    assert (optimizer.step(torch.tensor([1]), torch.ones(1, 2), 1.0) < 0).all()


def test_decay_takes_its_share_off_the_row_before_the_step_in_any_company() -> None:
    """To the bit, by where it stands, too: a node and a trainer have a row among other ones."""
    draw = np.random.default_rng(3)
    steps, before = (torch.from_numpy(draw.standard_normal((1001, 7)).astype(np.float32)) for _ in range(2))
    decay, whole = RowDecay(0.5, 0.25), steps.clone()
    decay.add(whole, before, 0.5)
    wanted = steps.double() - 0.5 * 0.5 * 0.25 * before.double()
    torch.testing.assert_close(whole.double(), wanted, rtol=0, atol=1e-6)
    for part in range(3):
        alone = steps[part::3].clone()
        decay.add(alone, before[part::3].clone(), 0.5)
        assert torch.equal(alone, whole[part::3])
    assert decay
    assert not RowDecay(0.5, 0.0)


def test_the_stated_state_is_what_it_keeps() -> None:
    assert RULES.keys() == ROW_STATES.keys()
    for name in RULES:
        state = RowOptimizer(name, ROWS, DIM, LR).state
        assert {n: a.shape for n, a in state.items()} == {
            s.name: s.shape(ROWS, DIM) for s in row_states(name)
        }
        assert sum(array.size for array in state.values()) == ROWS * state_floats(name, DIM)


def test_an_unknown_name_is_an_error_that_names_the_key() -> None:
    wanted = r'^embedding\.optimizer: "adamax" is not an optimizer; use one of sgd, .*, adam$'
    with pytest.raises(JobFileError, match=wanted):
        RowOptimizer("adamax", 1, DIM, LR)
    with pytest.raises(JobFileError, match=wanted):
        state_floats("adamax", DIM)
