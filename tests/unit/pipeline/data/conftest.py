"""Small logs of the tests of the data path: 2 dense and 3 categorical columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from shadowsync.pipeline.data.batch import Batch
from shadowsync.pipeline.data.batches.span_plan import plan_spans
from shadowsync.pipeline.data.schema import FeatureShape
from shadowsync.pipeline.data.span import Span
from shadowsync.tests.support.data.span_batches import cut_batches

SHAPE = FeatureShape(2, 3, (1000, 7, 2**31 - 1))


def _lines(count: int, seed: int = 1) -> list[str]:
    """Good lines without their ends: empty fields, negative numbers, ids of 0, 8 and other lengths."""
    rng = np.random.default_rng(seed)
    lines = []
    for number in range(count):
        numbers = [str(rng.integers(-3, 10**6)) if rng.random() < 0.8 else "" for _ in range(2)]
        ids = [f"{rng.integers(2**32):08x}", f"n{number}", f"{rng.integers(50):08x}"]
        ids = [value if rng.random() < 0.8 else "" for value in ids]
        lines.append("\t".join([str(rng.integers(2)), *numbers, *ids]))
    return lines


@pytest.fixture
def shape() -> FeatureShape:
    return SHAPE


@pytest.fixture
def lines() -> Callable[..., list[str]]:
    return _lines


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """1,000 good lines."""
    path = tmp_path / "log.tsv"
    path.write_text("\n".join(_lines(1000)) + "\n")
    return path


@pytest.fixture
def whole() -> Callable[..., Span]:
    """The one span of a whole file."""

    def one(path: Path, data_format: str = "criteo_tsv") -> Span:
        (span,) = plan_spans([str(path)], data_format, 1 << 40, SHAPE)
        return span

    return one


@pytest.fixture
def cut() -> Callable[..., list[Batch]]:
    """All batches of a span, with the options of `cut_batches`."""
    return lambda span, **options: list(cut_batches(span, SHAPE, **options))
