"""Jobs and models to test with."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from shadowsync.pipeline.config.job import Job
from torch import nn

Array = NDArray[np.float64]
TORCH = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
_numbers = count()


def array(tensor: torch.Tensor) -> Array:
    values: Array = tensor.detach().numpy().astype(np.float64)
    return values


def inputs_of(
    batch: int, dense: int, dims: list[int], *, seed: int = 3, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Dense features, and of each table a vector of an example."""
    generator = torch.Generator().manual_seed(seed)
    first, *tables = (torch.randn(batch, width, generator=generator, dtype=dtype) for width in (dense, *dims))
    return first, tables


def through(layers: nn.Module, x: Array, *, last_relu: bool) -> Array:
    """An MLP, layer by layer."""
    linear = [layer for layer in layers.modules() if isinstance(layer, nn.Linear)]
    for number, layer in enumerate(linear):
        x = x @ array(layer.weight).T + array(layer.bias)
        if last_relu or number < len(linear) - 1:
            x = np.maximum(x, 0.0)
    return x


@pytest.fixture
def make_job() -> Callable[..., Job]:
    """A job of 3 dense features and 4 tables of dimension 2, with these settings of [model] and a seed."""

    def make(*, seed: int = 1, dense: int = 3, tables: int = 4, **model: Any) -> Job:
        small = {"embedding_dim": 2, "table_rows": 5, "bottom": [5], "top": [4]}
        data = {"format": "parquet", "path": ["x"], "dense_features": dense, "categorical_features": tables}
        return Job.model_validate({"run": {"seed": seed}, "data": data, "model": small | model})

    return make


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a user's module that can be imported; gives its name, new each time."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str) -> str:
        name = f"someones_model_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        return name

    return write
