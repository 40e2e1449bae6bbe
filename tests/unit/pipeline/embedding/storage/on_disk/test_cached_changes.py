"""The change epochs of cached rows, beside a plain dictionary."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from shadowsync.pipeline.embedding.storage.on_disk.cached_changes import CachedChanges, ReplacedChanges
from shadowsync.pipeline.embedding.storage.on_disk.row_cache import ABSENT


def rows_after(changes: CachedChanges, epoch: int) -> set[int]:
    found = changes.rows(epoch, lambda step: step())
    assert found.dtype == np.int64
    assert (np.diff(found) > 0).all()
    assert changes.count(epoch) >= len(found)
    return set(found.tolist())


# Most of the time with many rows goes into bitmaps, which a seed does not change.
@pytest.mark.parametrize(("rows", "seed"), [*product([7, 64, 1000], range(5)), (10_000_000, 0)])
def test_no_changed_row_is_missing(rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    row_of = np.full(16, ABSENT, np.int32)
    changes, expected, epoch = CachedChanges(rows, row_of), dict[int, int](), 1
    for step in range(2_000):
        place = int(rng.integers(16))
        kind = rng.random()
        if kind < 0.5:
            if row_of[place] != ABSENT:
                changes.changed_at[place] = epoch
                expected[int(row_of[place])] = epoch
        elif kind < 0.97:
            if row_of[place] != ABSENT and changes.changed_at[place]:
                changes.replaced.add(row_of[place : place + 1].copy(), changes.changed_at[place : place + 1])
            absent = np.setdiff1d(np.arange(min(rows, 40)) * (rows // min(rows, 40)), row_of)
            row_of[place] = rng.choice(absent) if len(absent) else ABSENT
            changes.changed_at[place] = 0
        elif kind < 0.98:
            changes.mark(np.array([3, 5]), epoch)
            expected |= {3: epoch, 5: epoch}
        elif epoch < 250:
            epoch += 1
        if step % 50 == 0:
            for since in {0, 1, epoch // 2, epoch - 1}:
                changed = {row for row, at in expected.items() if at > since}
                found = rows_after(changes, since)
                assert changed <= found
                # Few changes of many rows: nothing but them.
                assert found == changed or rows <= 1000


def test_many_changes_take_few_bits_a_row() -> None:
    """And the rows that changed in the last epoch are told from all before, however many they are."""
    rows, rng = 320_000, np.random.default_rng(0)
    replaced = ReplacedChanges(rows)
    tracemalloc.start()
    try:
        for epoch in range(1, 30):
            changed = rng.permutation(rows)[: 1000 * int(rng.integers(1, 30))].astype(np.int32)
            for some in np.split(changed, range(1000, len(changed), 1000)):
                replaced.add(some, np.full(len(some), epoch, np.uint8))
            assert replaced.count(epoch) == 0
            assert replaced.count(epoch - 1) == len(changed)
            del changed, some
            assert tracemalloc.get_traced_memory()[0] <= rows * 2.5 / 8 * 1.1
    finally:
        tracemalloc.stop()
    replaced.forget()
    assert replaced.count(0) == 0


def test_a_row_that_makes_way_between_two_steps_is_found() -> None:
    changes = CachedChanges(1000, np.arange(32, dtype=np.int32))
    changes.changed_at[5] = 2
    steps: list[NDArray[Any]] = []

    def fetch(step: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        # The control: had the replaced rows been looked at first, it would be in neither.
        replaced = changes.replaced.count(1)
        steps.append(step())
        if len(steps) == 1:
            assert not replaced
            changes.replaced.add(np.array([5], np.int32), np.array([2], np.uint8))
            changes.changed_at[5] = 0
        return steps[-1]

    assert changes.rows(1, fetch).tolist() == [5]
    assert not np.flatnonzero(changes.changed_at > 1).size


def test_epochs_that_are_forgotten_leave_rows_to_be_written() -> None:
    changes = CachedChanges(1000, np.arange(32, dtype=np.int32))
    changes.changed_at[[3, 4]] = 9
    changes.mark(np.array([100]), 9)
    changes.forget()
    assert rows_after(changes, 1) == set()
    assert np.flatnonzero(changes.changed_at).tolist() == [3, 4]
