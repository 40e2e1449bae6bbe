"""DeepFM, AutoInt and FinalMLP against plain sums in float64, each with a control without its interaction."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.pipeline.models.built_in.autoint import AutoInt, FeatureAttention
from shadowsync.pipeline.models.built_in.deepfm import DeepFM
from shadowsync.pipeline.models.built_in.finalmlp import FinalMLP
from torch import nn

from ..conftest import Array, array, inputs_of, through

BATCH, DENSE, TABLES, DIM = 6, 3, 4, 5
DIMS = [DIM] * TABLES


@pytest.mark.parametrize("dense_features", [0, DENSE])
def test_deepfm_is_its_equations_pair_by_pair(dense_features: int) -> None:
    torch.manual_seed(1)
    model = DeepFM(dense_features, DIMS, top=[7, 4]).double()
    dense, tables = inputs_of(BATCH, dense_features, DIMS, dtype=torch.float64)
    fields = [array(table) for table in tables]
    deep = np.concatenate([array(dense), *(field[:, 1:] for field in fields)], axis=1)
    without = sum(field[:, 0] for field in fields) + through(model.deep, deep, last_relu=False)[:, 0]
    if model.linear is not None:
        without = without + array(dense) @ array(model.linear.weight)[0] + array(model.linear.bias)[0]
    pairs = itertools.combinations(fields, 2)
    products = sum(np.einsum("ij,ij->i", one[:, 1:], other[:, 1:]) for one, other in pairs)
    result = array(model(dense, tables))
    np.testing.assert_allclose(result, without + products, rtol=1e-10, atol=1e-10)
    assert np.abs(result - without).max() > 0.1, "the control: without products"


def plain_attention(layer: FeatureAttention, e: Array, heads: int, width: int) -> Array:
    """Equations 5 to 8, feature by feature and head by head."""
    query, key, value, residual = (
        array(part.weight) for part in (layer.query, layer.key, layer.value, layer.residual)
    )
    outputs = np.zeros((*e.shape[:2], heads * width))
    for example, head in itertools.product(range(len(e)), range(heads)):
        part = slice(head * width, (head + 1) * width)
        for m in range(e.shape[1]):
            scores = np.exp([(query[part] @ e[example, m]) @ (key[part] @ other) for other in e[example]])
            attention = scores / scores.sum()
            outputs[example, m, part] = sum(
                a * (value[part] @ other) for a, other in zip(attention, e[example], strict=True)
            )
    return np.maximum(outputs + e @ residual.T, 0.0)


@pytest.mark.parametrize("top", [[], [7]])
@pytest.mark.parametrize("dense_features", [0, DENSE])
def test_autoint_is_its_equations_feature_by_feature(dense_features: int, top: list[int]) -> None:
    torch.manual_seed(1)
    heads, width = 2, 3
    model = AutoInt(dense_features, DIMS, top=top, layers=2, heads=heads, head_dim=width).double()
    dense, tables = inputs_of(BATCH, dense_features, DIMS, dtype=torch.float64)
    numbers = array(dense)[:, :, None] * array(model.dense_vectors)
    e = first = np.concatenate([numbers, np.stack([array(table) for table in tables], axis=1)], axis=1)
    for layer in model.attention:
        assert isinstance(layer, FeatureAttention)
        e = plain_attention(layer, e, heads, width)
    expected = e.reshape(BATCH, -1) @ array(model.last.weight)[0] + array(model.last.bias)[0]
    if model.deep is not None:
        joined = np.concatenate([array(dense), *map(array, tables)], axis=1)
        expected = expected + through(model.deep, joined, last_relu=False)[:, 0]
    assert (model.deep is None) == (not top)
    np.testing.assert_allclose(array(model(dense, tables)), expected, rtol=1e-10, atol=1e-10)
    layer = model.attention[0]
    assert isinstance(layer, FeatureAttention)
    alone = np.maximum(first @ array(layer.residual.weight).T, 0.0)
    assert np.abs(plain_attention(layer, first, heads, width) - alone).max() > 1e-2, "the control"


@pytest.mark.parametrize("heads", [1, 2])
def test_finalmlp_is_its_equations_head_by_head(heads: int) -> None:
    torch.manual_seed(1)
    model = FinalMLP(DENSE, DIMS, bottom=[9, 8], top=[10], heads=heads).double()
    nn.init.normal_(model.gates)
    dense, tables = inputs_of(BATCH, DENSE, DIMS, dtype=torch.float64)
    x = np.concatenate([array(dense), *map(array, tables)], axis=1)
    gates = 2 / (1 + np.exp(-array(model.gates)))
    one, two = (
        through(part, x * gate, last_relu=True)
        for part, gate in zip((model.first, model.second), gates, strict=True)
    )
    linear = np.concatenate([one, two], axis=1) @ array(model.linear.weight)[0] + array(model.linear.bias)[0]
    parts = zip(
        np.split(one, heads, axis=1), np.split(two, heads, axis=1), array(model.products), strict=True
    )
    products = sum(np.einsum("bi,ij,bj->b", left, matrix, right) for left, right, matrix in parts)
    result = array(model(dense, tables))
    np.testing.assert_allclose(result, linear + products, rtol=1e-10, atol=1e-10)
    assert np.abs(result - linear).max() > 1e-2, "the control: without the product"


def test_the_gates_of_finalmlp_begin_open_and_differ_by_stream() -> None:
    torch.manual_seed(1)
    model = FinalMLP(DENSE, DIMS, bottom=[8], top=[8]).double()
    dense, tables = inputs_of(BATCH, DENSE, DIMS, dtype=torch.float64)
    before = model(dense, tables)
    x = torch.cat([dense, *tables], dim=1)
    plain = model.linear(torch.cat([model.first(x), model.second(x)], dim=1)).squeeze(1)
    plain = plain + ((model.first(x) @ model.products[0]) * model.second(x)).sum(dim=1)
    torch.testing.assert_close(before, plain)
    with torch.no_grad():
        model.gates[1].fill_(-50.0)
    closed = model(torch.zeros_like(dense), [torch.zeros_like(table) for table in tables])
    first_only = model(dense, tables)
    assert (first_only - before).abs().max() > 1e-3
    assert (first_only - closed).abs().max() > 1e-3, "the first stream still sees its inputs"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DeepFM(DENSE, [4, 2], top=[3]), r"deepfm needs tables of one .* these have \[2, 4\]"),
        (lambda: DeepFM(DENSE, [1, 1], top=[3]), r"at least 2; these have \[1\]"),
        (lambda: AutoInt(DENSE, [4, 2], top=[3]), r"autoint needs tables of one dimension"),
        (lambda: AutoInt(DENSE, DIMS, top=[3], heads=0), "heads: 0 given; give 1 to 1024"),
        (lambda: AutoInt(DENSE, DIMS, top=[3], layers=0), "layers: 0 given"),
        (lambda: FinalMLP(DENSE, DIMS, bottom=[], top=[3]), "two streams: give widths as model.bottom"),
        (lambda: FinalMLP(DENSE, DIMS, bottom=[4], top=[6], heads=4), "heads: 4 given; .* 4 and 6"),
    ],
)
def test_settings_that_make_no_model(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()
