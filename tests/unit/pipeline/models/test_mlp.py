"""The layers of an MLP, and which of them autocast rounds."""

from __future__ import annotations

import torch
from shadowsync.pipeline.models.layers import mlp
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
