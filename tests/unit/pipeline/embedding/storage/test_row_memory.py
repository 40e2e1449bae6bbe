"""Memory that is read and written by row numbers: where it lies, and that nothing else is touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.pipeline.embedding.storage import row_storage as row_storage_module
from shadowsync.pipeline.embedding.storage.optimizers import RULES, RowOptimizer
from shadowsync.pipeline.embedding.storage.row_storage import CACHE_LINE_BYTES, Float32Rows, RowMemory

SHAPES = [(70,), (70, 1), (70, 5), (70, 16)]


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_put_is_taken_and_the_rest_stays(shape: tuple[int, ...], dtype: type[np.generic]) -> None:
    memory: RowMemory[Any] = RowMemory(shape, dtype)
    assert (memory.values.shape, memory.values.dtype) == (shape, np.dtype(dtype))
    assert not memory.values.any()
    wanted = memory.values.copy()
    draw = np.random.default_rng(1)
    for _ in range(5):
        rows = draw.permutation(shape[0])[:20].astype(np.int64)
        values = draw.integers(1, 60_000, (20, *shape[1:])).astype(dtype)
        memory.put(rows, values)
        wanted[rows] = values
    np.testing.assert_array_equal(memory.values, wanted)
    asked = draw.integers(0, shape[0], 50)
    for kind in (np.int32, np.int64):
        out = np.empty((50, *shape[1:]), dtype)
        assert memory.take(asked.astype(kind), out) is out
        np.testing.assert_array_equal(out, wanted[asked])
        np.testing.assert_array_equal(memory.take(asked.astype(kind)), wanted[asked])


@pytest.mark.parametrize("rows", [1, 1000, 100_000])
def test_rows_as_long_as_a_line_of_the_cache_are_in_one_each(rows: int) -> None:
    kept = [RowMemory((rows, 16), np.float32) for _ in range(5)]
    assert [memory.values.ctypes.data % CACHE_LINE_BYTES for memory in kept] == [0] * 5
    assert all(memory.values.flags.c_contiguous and memory.values.flags.aligned for memory in kept)


@pytest.mark.parametrize("name", RULES)
def test_weights_and_state_lie_so(name: str) -> None:
    arrays = RowOptimizer(name, 500, 16, 0.1).state | {"weights": Float32Rows(500, 16).values}
    assert all(values.ctypes.data % CACHE_LINE_BYTES == 0 for values in arrays.values())


@pytest.mark.parametrize("block_rows", [1, 7, 64, 10_000])
@pytest.mark.parametrize("dim", [1, 5, 16])
def test_a_large_table_and_a_small_one_are_added_to_alike(
    dim: int, block_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, results = np.random.default_rng(2), []
    first = draw.standard_normal((300, dim)).astype(np.float32)
    rows = np.sort(draw.permutation(300)[:100]).astype(np.int64)
    steps = draw.standard_normal((100, dim)).astype(np.float32)
    wanted = first.copy()
    wanted[rows] += steps
    monkeypatch.setattr(row_storage_module, "BLOCK_BYTES", block_rows * dim * 4)
    for large_bytes in (0, 1 << 30):
        monkeypatch.setattr(row_storage_module, "LARGE_BYTES", large_bytes)
        storage = Float32Rows(300, dim)
        storage.values[:] = first
        storage.add(torch.from_numpy(rows), torch.from_numpy(steps.copy()), 3)
        results.append(np.asarray(storage.values).tobytes())
    assert results == [wanted.tobytes()] * 2
    # The control: something was added.
    assert first.tobytes() != results[0]
