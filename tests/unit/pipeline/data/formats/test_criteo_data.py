"""The true Criteo log: 10,000 rows, no bad one, the mean label that its source states."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from shadowsync.pipeline.data.batches.span_plan import plan_spans
from shadowsync.pipeline.data.schema import FeatureShape
from shadowsync.tests.support.data.span_batches import cut_batches

FOLDER = os.environ.get("SHADOWSYNC_DATA")
FILE = Path(FOLDER or "") / "criteo_first10k.tsv.gz"
SHAPE = FeatureShape(13, 26, (100_000,) * 26)

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(FOLDER is None, reason="SHADOWSYNC_DATA does not point to the real data sets"),
]


def _read(pattern: str, span_bytes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    parts = [
        (batch.labels, batch.dense, batch.rows)
        for span in plan_spans([pattern], "criteo_tsv", span_bytes, SHAPE)
        for batch in cut_batches(span, SHAPE, batch=512)
    ]
    labels, dense, rows = zip(*parts, strict=True)
    return np.concatenate(labels), np.concatenate(dense), np.concatenate(rows, axis=1)


def test_counts_and_first_row() -> None:
    labels, dense, rows = _read(str(FILE), 1 << 20)
    assert len(labels) == 10_000
    assert round(float(labels.mean()), 4) == 0.2182
    assert rows.shape == (26, 10_000)
    first = [1, 1, 5, 0, 1382, 4, 15, 2, 181, 1, 2, 0, 2]
    np.testing.assert_allclose(dense[0], np.log1p(first), rtol=1e-6)
    assert dense.min() < 0, "Criteo's I2 has negative values"


def test_ids_as_many_as_there_are() -> None:
    """Distinct rows of a column are its distinct ids but for collisions, of which chance allows few."""
    _, _, rows = _read(str(FILE), 1 << 20)
    with gzip.open(FILE, "rb") as file:
        ids = [
            set(column)
            for column in list(zip(*(line.rstrip(b"\n").split(b"\t") for line in file), strict=True))[14:]
        ]
    for found, column in zip(rows, ids, strict=True):
        expected = 100_000 * (1 - (1 - 1 / 100_000) ** len(column))
        assert (
            len(column)
            >= len(np.unique(found))
            >= expected - 5 * max(1.0, (len(column) - expected)) ** 0.5 - 1
        )


def test_plain_and_in_spans_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(gzip.decompress(FILE.read_bytes()))
    for got, want in zip(_read(str(path), 100_000), _read(str(FILE), 1), strict=True):
        np.testing.assert_array_equal(got, want)
