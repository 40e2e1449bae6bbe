"""Jobs and models to test with."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from shadowsync.pipeline.config.job import Job

_numbers = count()


@pytest.fixture
def make_job() -> Callable[..., Job]:
    """A job of 3 dense features and 4 tables of dimension 2, with these settings of [model] and a seed."""

    def make(*, seed: int = 1, dense: int = 3, tables: int = 4, **model: Any) -> Job:
        small = {"embedding_dim": 2, "table_rows": 5, "bottom": [5], "top": [4]}
        data = {
            "format": "parquet",
            "path": ["x"],
            "dense_features": dense,
            "categorical_features": tables,
        }
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
