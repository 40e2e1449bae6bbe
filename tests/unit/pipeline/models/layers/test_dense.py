"""The layers of an MLP, and the products of all pairs: their values, and what autocast rounds."""

from __future__ import annotations

import pytest
import torch
from shadowsync.pipeline.models.layers.dense import PairProducts, mlp, regularize_
from torch import nn


def _made() -> tuple[nn.Sequential, nn.Linear, torch.Tensor]:
    """The layers, the last of them, and inputs."""
    torch.manual_seed(4)
    layers = mlp([64, 128, 1], last_relu=False)
    thin = layers[2]
    assert isinstance(thin, nn.Linear)
    return layers, thin, torch.randn(32, 64)


def test_a_thin_layer_is_multiplied_in_float32_under_autocast() -> None:
    layers, thin, inputs = _made()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = layers[:2](inputs)
        result = thin(hidden)
    assert (hidden.dtype, result.dtype) == (torch.bfloat16, torch.float32), "the wide one is the control"
    torch.testing.assert_close(result, hidden.float() @ thin.weight.t() + thin.bias)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = nn.functional.linear(hidden, thin.weight, thin.bias)
    assert not torch.equal(rounded.float(), result), "the control: as autocast does it"


def test_without_autocast_it_is_any_linear_layer() -> None:
    layers, thin, inputs = _made()
    expected = nn.functional.linear(layers[:2](inputs), thin.weight, thin.bias)
    assert torch.equal(layers(inputs), expected)


def test_layers_are_normalized_before_their_activation() -> None:
    layers, _, inputs = _made()
    plain = layers(inputs)
    regularize_(layers, dropout=0.0, layer_norm=True)
    hidden = nn.functional.linear(inputs, layers[0].weight, layers[0].bias)  # type: ignore[arg-type]
    centered = hidden - hidden.mean(dim=1, keepdim=True)
    normalized = centered / (centered.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(layers(inputs), layers[2](normalized.relu()), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(layers(inputs), plain, atol=1e-3), "the control"


def test_dropout_is_in_training_alone_and_after_hidden_layers() -> None:
    layers, thin, inputs = _made()
    plain, hidden = layers(inputs), layers[:2](inputs)
    regularize_(layers, dropout=0.25, layer_norm=False)
    dropped = layers[:2](inputs) / hidden
    share = float((dropped[hidden > 0] == 0).float().mean())
    assert abs(share - 0.25) < 0.05
    kept = dropped[(hidden > 0) & (dropped != 0)]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 0.75))
    assert layers[2] is thin, "the output is never dropped"
    assert torch.equal(layers.eval()(inputs), plain)


def test_without_either_the_names_stay() -> None:
    layers, _, _ = _made()
    before = list(layers.state_dict())
    regularize_(layers, dropout=0.0, layer_norm=False)
    assert list(layers.state_dict()) == before
    regularize_(layers, dropout=0.5, layer_norm=True)
    assert list(layers.state_dict()) != before, "the control"


def _plain(vectors: torch.Tensor) -> torch.Tensor:
    """The lower triangle of all products, picked by plain indexing."""
    rows, columns = torch.tril_indices(vectors.shape[1], vectors.shape[1], -1)
    return torch.einsum("bik,bjk->bij", vectors, vectors)[:, rows, columns]


@pytest.mark.parametrize(("batch", "features", "dim"), [(7, 5, 3), (1, 2, 1), (64, 27, 16)])
def test_products_and_their_gradients_are_those_of_autograd(batch: int, features: int, dim: int) -> None:
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


def test_products_without_a_gradient_are_the_same() -> None:
    vectors = torch.randn(4, 6, 3)
    products = PairProducts(6)
    with torch.no_grad():
        plain = products(vectors)
    assert torch.equal(products(vectors.requires_grad_()).detach(), plain)


def test_autocast_does_not_reach_products() -> None:
    vectors = torch.randn(4, 6, 3).requires_grad_()
    products = PairProducts(6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = products(vectors)
        assert torch.bmm(vectors, vectors.transpose(1, 2)).dtype == torch.bfloat16, "the control is reached"
    assert torch.equal(inside, products(vectors))
    inside.sum().backward()
    assert vectors.grad is not None
    assert vectors.grad.dtype == torch.float32
