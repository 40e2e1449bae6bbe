"""The products of all pairs against autograd's own way, value and gradient."""

from __future__ import annotations

import pytest
import torch
from shadowsync.pipeline.models.layers.dense import PairProducts


def _plain(vectors: torch.Tensor) -> torch.Tensor:
    """The lower triangle of all products, picked by plain indexing."""
    rows, columns = torch.tril_indices(vectors.shape[1], vectors.shape[1], -1)
    return torch.einsum("bik,bjk->bij", vectors, vectors)[:, rows, columns]


@pytest.mark.parametrize(("batch", "features", "dim"), [(7, 5, 3), (1, 2, 1), (64, 27, 16)])
def test_values_and_gradients_are_those_of_autograd(batch: int, features: int, dim: int) -> None:
    torch.manual_seed(1)
    values = torch.randn(batch, features, dim, dtype=torch.float64)
    ours, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
    slope = torch.randn(batch, features * (features - 1) // 2, dtype=torch.float64)
    products = PairProducts(features)
    result, wanted = products(ours), _plain(theirs)
    torch.testing.assert_close(result, wanted)
    torch.autograd.backward([result, wanted], [slope, slope])
    assert ours.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad)
    # The control: the gradient of one triangle alone is another.
    one_sided = torch.zeros(batch, features, features, dtype=torch.float64)
    rows, columns = torch.tril_indices(features, features, -1)
    one_sided[:, rows, columns] = slope
    assert not torch.allclose(torch.bmm(one_sided, values), ours.grad)


def test_without_a_gradient_it_is_the_same() -> None:
    vectors = torch.randn(4, 6, 3)
    products = PairProducts(6)
    with torch.no_grad():
        plain = products(vectors)
    assert torch.equal(products(vectors.requires_grad_()).detach(), plain)


def test_autocast_does_not_reach_it() -> None:
    vectors = torch.randn(4, 6, 3).requires_grad_()
    products = PairProducts(6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = products(vectors)
        assert torch.bmm(vectors, vectors.transpose(1, 2)).dtype == torch.bfloat16, "the control is reached"
    assert torch.equal(inside, products(vectors))
    inside.sum().backward()
    assert vectors.grad is not None
    assert vectors.grad.dtype == torch.float32
