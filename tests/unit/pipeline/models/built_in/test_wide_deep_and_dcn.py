"""Wide & Deep and DCN-V2 against re-computations in float64, their gradients, and a linear control."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.pipeline.models.built_in.dcn_v2 import CrossLayer, DCNv2
from shadowsync.pipeline.models.built_in.dlrm import DLRM
from shadowsync.pipeline.models.built_in.wide_deep import WideDeep
from shadowsync.pipeline.models.layers.dense import mean_log_loss
from torch import nn

from ..conftest import Array, array, inputs_of, through

BATCH, DENSE, DIMS = 6, 3, [4, 1, 2]
WIDTH = DENSE + sum(DIMS)
Make = Callable[[], nn.Module]


def _wide_deep() -> WideDeep:
    torch.manual_seed(5)
    return WideDeep(DENSE, DIMS, top=[7, 5])


def _dcn(**options: Any) -> DCNv2:
    torch.manual_seed(5)
    settings: dict[str, Any] = {"top": [7, 5], "cross_layers": 2} | options
    return DCNv2(DENSE, DIMS, **settings)


def _plain_wide_deep(model: WideDeep, dense: torch.Tensor, tables: list[torch.Tensor]) -> Array:
    assert model.wide is not None
    wide = array(dense) @ array(model.wide.weight)[0] + array(model.wide.bias)[0]
    wide = wide + sum(array(table)[:, 0] for table in tables)
    deep = np.concatenate([array(dense), *(array(table)[:, 1:] for table in tables)], axis=1)
    logits: Array = wide + through(model.deep, deep, last_relu=False)[:, 0]
    return logits


def _plain_dcn(model: DCNv2, dense: torch.Tensor, tables: list[torch.Tensor], *, parallel: bool) -> Array:
    first = np.concatenate([array(dense), *map(array, tables)], axis=1)
    x = first
    for layer in model.cross:
        assert isinstance(layer, CrossLayer)
        matrix = array(layer.up.weight)
        if layer.down is not None:
            matrix = matrix @ array(layer.down.weight)
        x = first * (x @ matrix.T + array(layer.up.bias)) + x
    joined = x if not parallel else np.concatenate([x, through(model.deep, first, last_relu=True)], axis=1)
    if not parallel:
        joined = through(model.deep, x, last_relu=True)
    logits: Array = joined @ array(model.last.weight)[0] + array(model.last.bias)[0]
    return logits


def test_wide_deep() -> None:
    model, (dense, tables) = _wide_deep(), inputs_of(BATCH, DENSE, DIMS)
    logits = model(dense, tables)
    assert (logits.shape, logits.dtype) == ((BATCH,), torch.float32)
    np.testing.assert_allclose(array(logits), _plain_wide_deep(model, dense, tables), rtol=1e-5, atol=1e-5)
    # The weight of an id is in the wide part only: moving it moves the logit by as much.
    tables[0][:, 0] += 1.0
    torch.testing.assert_close(model(dense, tables), logits + 1.0)
    tables[0][:, 1] += 1.0
    assert (model(dense, tables) - logits - 1.0).abs().max() > 1e-3, "the control: others go through the MLP"


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("structure", ["stacked", "parallel"])
def test_dcn(structure: str, rank: int) -> None:
    model, (dense, tables) = _dcn(structure=structure, rank=rank), inputs_of(BATCH, DENSE, DIMS)
    logits = model(dense, tables)
    assert (logits.shape, logits.dtype) == ((BATCH,), torch.float32)
    parallel = structure == "parallel"
    np.testing.assert_allclose(
        array(logits), _plain_dcn(model, dense, tables, parallel=parallel), rtol=1e-4, atol=1e-5
    )


def test_a_cross_layer_by_hand() -> None:
    """x0 = (1, 2), x = (3, 4), W = ((1, 2), (3, 4)), b = (1, -1): Wx + b = (12, 24), so x' = (15, 52)."""
    layer = CrossLayer(2)
    with torch.no_grad():
        layer.up.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        layer.up.bias.copy_(torch.tensor([1.0, -1.0]))
    crossed = layer(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    assert crossed.tolist() == [[15.0, 52.0]]


def test_cross_layers_are_polynomials_of_the_input() -> None:
    """Two layers without bias, scaled by s: the part of degree 3 grows as s cubed. The control is one layer,
    whose third difference is nothing."""
    for layers, degree in [(2, 3), (1, 2)]:
        model = _dcn(cross_layers=layers)
        x = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(1)).double()
        values = []
        for scale in range(5):
            first = out = x * scale
            for layer in model.double().cross:
                assert isinstance(layer, CrossLayer)
                nn.init.zeros_(layer.up.bias)
                out = layer(first, out)
            values.append(out.detach().numpy())
        differences = np.diff(np.stack(values), n=degree, axis=0)
        assert np.abs(differences).max() > 1e-3
        np.testing.assert_allclose(np.diff(np.stack(values), n=degree + 1, axis=0), 0.0, atol=1e-9)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(_wide_deep, id="wide_deep"),
        pytest.param(_dcn, id="dcn_v2"),
        pytest.param(lambda: _dcn(structure="parallel", rank=3), id="dcn_v2, parallel, low rank"),
        pytest.param(lambda: DLRM(DENSE, DIMS, bottom=[5], top=[6], project=True), id="dlrm, projected"),
    ],
)
def test_gradients_against_differences(make: Make) -> None:
    torch.manual_seed(8)
    model, (dense, tables) = make().double(), inputs_of(BATCH, DENSE, DIMS)
    wanted = [table.double().requires_grad_() for table in tables]
    inputs = (dense.double(), wanted)
    model(*inputs).sum().backward()
    step = 1e-6
    for tensor in [*wanted, *model.parameters()]:
        assert tensor.grad is not None
        place = int(tensor.grad.abs().argmax())
        assert abs(float(tensor.grad.flatten()[place])) > 1e-6, "something depends on it"
        moved = []
        for sign in (1.0, -1.0):
            with torch.no_grad():
                tensor.view(-1)[place] += sign * step
                moved.append(float(model(*inputs).sum()))
                tensor.view(-1)[place] -= sign * step
        slope = (moved[0] - moved[1]) / (2 * step)
        assert float(tensor.grad.flatten()[place]) == pytest.approx(slope, rel=1e-4)


class _Linear(nn.Module):
    """The control: no interaction of any two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.last(torch.cat([dense, *embeddings], dim=1)).squeeze(1)
        return logits


def _trained(model: nn.Module) -> float:
    """The held-out log loss after training on labels that hang on products of two inputs, none of them the
    weight of an id."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(4000, WIDTH, generator=generator)
    # The weights of ids, which nobody trains here.
    x[:, [3, 7, 8]] = 0.0
    score = 2.0 * x[:, 0] * x[:, 4] - 1.5 * x[:, 1] * x[:, 9]
    labels = (torch.rand(4000, generator=generator) < torch.sigmoid(score)).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss(rows: slice) -> torch.Tensor:
        dense, *tables = torch.split(x[rows], [DENSE, *DIMS], dim=1)
        return mean_log_loss(model(dense, tables), labels[rows])

    for _ in range(6):
        for start in range(0, 3000, 100):
            optimizer.zero_grad()
            loss(slice(start, start + 100)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    with torch.no_grad():
        return float(loss(slice(3000, 4000)))


def test_they_learn_what_a_linear_model_cannot() -> None:
    torch.manual_seed(1)
    control = _trained(_Linear())
    assert control > 0.65
    wide_deep = WideDeep(DENSE, DIMS, top=[32, 16])
    for model in (wide_deep, _dcn(top=[32]), _dcn(top=[32], structure="parallel", rank=4)):
        assert _trained(model) < control - 0.1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: WideDeep(0, [1, 1], top=[3]), "deep part has no input"),
        (lambda: _dcn(cross_layers=0), "cross_layers: 0 given"),
        (lambda: _dcn(rank=WIDTH), f"rank: {WIDTH} given; the input is {WIDTH} wide"),
        (lambda: _dcn(structure="beside"), "structure: 'beside' given"),
        (lambda: DLRM(DENSE, DIMS, bottom=[4], top=[4]), r"these have \[1, 2, 4\]; .*options.project = true"),
    ],
)
def test_settings_that_make_no_model(make: Make, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_sizes_without_dense_features_or_hidden_layers() -> None:
    tables = inputs_of(BATCH, DENSE, DIMS)[1]
    nothing = torch.zeros(BATCH, 0)
    for model in (
        WideDeep(0, DIMS, top=[]),
        DCNv2(0, DIMS, top=[]),
        DCNv2(0, DIMS, top=[], structure="parallel"),
    ):
        assert model(nothing, tables).shape == (BATCH,)
