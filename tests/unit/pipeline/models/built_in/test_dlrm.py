"""DLRM against a plain re-computation with explicit loops in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.pipeline.models.built_in.dlrm import ALIGNMENT, DLRM
from torch import nn

from ..conftest import Array, array, inputs_of, through

BATCH = 7


def _plain(
    model: DLRM,
    dense: torch.Tensor,
    embeddings: list[torch.Tensor],
    *,
    bottom_relu: bool = True,
    by_columns: bool = False,
) -> Array:
    """The logits, one example and one product after the other; the two switches are for controls."""
    logits = []
    for n in range(len(dense)):
        below = (
            [] if model.bottom is None else [through(model.bottom, array(dense[n]), last_relu=bottom_relu)]
        )
        vectors = [*below, *(array(table[n]) for table in embeddings)]
        pairs = [(i, j) for i in range(len(vectors)) for j in range(i)]
        if by_columns:
            pairs.sort(key=lambda pair: pair[1])
        joined = np.concatenate([*below, [vectors[i] @ vectors[j] for i, j in pairs]])
        padded = np.pad(joined, (0, -len(joined) % ALIGNMENT))
        logits.append(through(model.top, padded, last_relu=False)[0])
    return np.array(logits)


def _make(dense: int, tables: int, dim: int, **widths: Any) -> DLRM:
    torch.manual_seed(5)
    sizes: dict[str, Any] = {"bottom": [6, 5], "top": [8, 3]}
    return DLRM(dense, [dim] * tables, **(sizes | widths))


@pytest.mark.parametrize(
    ("dense", "tables", "dim", "widths"),
    [
        pytest.param(3, 4, 2, {}, id="typical"),
        pytest.param(13, 26, 16, {}, id="the shape of Criteo"),
        pytest.param(0, 4, 2, {}, id="no dense features"),
        pytest.param(2, 1, 3, {}, id="one table"),
        pytest.param(3, 2, 4, {"bottom": [], "top": []}, id="no hidden layers"),
    ],
)
def test_logits(dense: int, tables: int, dim: int, widths: dict[str, Any]) -> None:
    model = _make(dense, tables, dim, **widths)
    inputs = inputs_of(BATCH, dense, [dim] * tables)
    logits = model(*inputs)
    assert logits.shape == (BATCH,)
    assert logits.dtype == torch.float32
    np.testing.assert_allclose(array(logits), _plain(model, *inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("bottom_relu", "by_columns"), [(False, False), (True, True)])
def test_another_model_is_told_apart(bottom_relu: bool, by_columns: bool) -> None:
    """The control of the comparison: no ReLU after the bottom MLP, or the pairs in another order."""
    model = _make(3, 4, 2)
    inputs = inputs_of(BATCH, 3, [2] * 4)
    other = _plain(model, *inputs, bottom_relu=bottom_relu, by_columns=by_columns)
    assert np.abs(other - _plain(model, *inputs)).max() > 1e-3


def test_gradients_of_the_embeddings() -> None:
    """Autograd against central differences of the plain form, for some elements of some tables."""
    model = _make(3, 4, 2)
    dense, embeddings = inputs_of(BATCH, 3, [2] * 4)
    wanted = [table.clone().requires_grad_() for table in embeddings]
    model(dense, wanted).sum().backward()
    step = 1e-5
    for table, example, element in [(0, 0, 0), (1, 3, 1), (3, 6, 0)]:
        moved = []
        for sign in (1.0, -1.0):
            tables = [values.double() for values in embeddings]
            tables[table][example, element] += sign * step
            moved.append(_plain(model, dense.double(), tables).sum())
        gradient = wanted[table].grad
        assert gradient is not None
        assert float(gradient[example, element]) == pytest.approx(
            (moved[0] - moved[1]) / (2 * step), rel=1e-3
        )


def test_number_of_parameters() -> None:
    """Of the demo's model, counted by hand."""
    model = DLRM(13, [16] * 26, bottom=[512, 256, 64], top=[512, 256])
    bottom = (13 + 1) * 512 + (512 + 1) * 256 + (256 + 1) * 64 + (64 + 1) * 16
    crossed = 16 + 27 * 26 // 2 + 1
    top = (crossed + 1) * 512 + (512 + 1) * 256 + (256 + 1) * 1
    assert sum(parameter.numel() for parameter in model.parameters()) == bottom + top
    assert "pairs" not in model.state_dict(), "the pairs are no weight"


def test_weights_of_the_padding_have_no_effect_and_no_gradient() -> None:
    model = _make(13, 26, 16)
    inputs = inputs_of(BATCH, 13, [16] * 26)
    first = model.top[0]
    assert isinstance(first, nn.Linear)
    joined = 16 + 27 * 26 // 2
    assert first.in_features == joined + 1
    before = model(*inputs)
    before.sum().backward()
    assert first.weight.grad is not None
    assert not first.weight.grad[:, joined:].any()
    # Of the first vector some may be 0 in all examples, after its ReLU; products of random vectors are not.
    assert first.weight.grad[:, joined - 300 : joined].any(dim=0).all()
    with torch.no_grad():
        first.weight[:, joined:] += 1.0
        assert torch.equal(model(*inputs), before)
        first.weight[:, joined - 1] += 1.0
        assert not torch.equal(model(*inputs), before)


def test_examples_do_not_see_each_other() -> None:
    model = _make(3, 4, 2)
    dense, embeddings = inputs_of(BATCH, 3, [2] * 4)
    alone = torch.cat(
        [model(dense[n : n + 1], [table[n : n + 1] for table in embeddings]) for n in range(BATCH)]
    )
    torch.testing.assert_close(alone, model(dense, embeddings))


def test_sizes_that_make_no_model() -> None:
    with pytest.raises(ValueError, match="tables of one dimension"):
        DLRM(3, [2, 3], bottom=[4], top=[4])
    with pytest.raises(ValueError, match="one table without dense features"):
        DLRM(0, [2], bottom=[4], top=[4])
