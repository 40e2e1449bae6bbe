"""The share of examples with an id in a row of several ids."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
from shadowsync.pipeline.data.batches import shared_rows as shared_rows_module
from shadowsync.pipeline.data.batches.shared_rows import SharedRowsMeter
from shadowsync.pipeline.data.hashing import mix, table_rows_of
from shadowsync.pipeline.types import Mask, Uint64Array

CHUNKS = (1, 7, 3000, 100, 12_000, 4_001)


def draw(ids: int, offset: int) -> list[Uint64Array]:
    """Chunks of hashes of so many different ids."""
    rng = np.random.default_rng(offset)
    return [mix(rng.integers(0, ids, n).astype(np.uint64) + np.uint64(offset)) for n in CHUNKS]


def sharing(hashes: Uint64Array, rows: int) -> Mask:
    """Which values have a row of several ids, by the definition."""
    own_rows = table_rows_of(hashes[None], (rows,))[0].tolist()
    ids_of: dict[int, set[int]] = {}
    for row, id_ in zip(own_rows, hashes.tolist(), strict=True):
        ids_of.setdefault(row, set()).add(id_)
    return np.array([len(ids_of[row]) > 1 for row in own_rows])


@pytest.mark.parametrize(("ids", "rows"), [(2000, 4096), (9, 16), (50, 100_000)])
def test_all_ids_count_and_early_examples_too(ids: int, rows: int) -> None:
    meter = SharedRowsMeter({"a": rows, "b": 2 * rows})
    found = {"a": draw(ids, 1), "b": draw(ids, 10**6)}
    assert meter.counts() == {}
    for a, b in zip(found["a"], found["b"], strict=True):
        meter.show({"a": a, "b": b, "growing": a}, {})
    counts = meter.counts()
    of_a, of_b = (sharing(np.concatenate(found[name]), size) for name, size in (("a", rows), ("b", 2 * rows)))
    # Every second value is looked at.
    assert counts["shared_rows/a"] == pytest.approx(of_a[::2].mean())
    assert counts["shared_rows/b"] == pytest.approx(of_b[::2].mean())
    assert counts["sharing_examples"] == pytest.approx((of_a | of_b)[::2].mean())
    assert counts["sharing_seen"] == sum(CHUNKS)
    assert (counts["sharing_examples"] > 0) == (rows < 100_000)


def test_ids_of_all_columns_of_a_table_share_its_rows() -> None:
    """And only those of a column of one id make an example one that shares."""
    rows = 4096
    meter = SharedRowsMeter({"t": rows}, frozenset({"list"}), {"t": ["one", "list"]})
    one, lists = draw(900, 1), [np.tile(chunk, 3) for chunk in draw(1500, 10**6)]
    for single, several in zip(one, lists, strict=True):
        meter.show({"one": single, "list": several}, {})
    every = [np.concatenate(one), np.concatenate(lists)]
    shared = sharing(np.concatenate(every), rows)
    of_one, of_list = shared[: len(every[0])], shared[len(every[0]) :]
    counts = meter.counts()
    assert counts["sharing_examples"] == pytest.approx(of_one[::2].mean())
    # Of the list every fourth value is looked at.
    assert counts["shared_rows/t"] == pytest.approx((of_one[::2].mean() + 3 * of_list[::4].mean()) / 4)
    # The control: by themselves they share fewer.
    assert of_one.mean() > sharing(every[0], rows).mean() + 0.1


def test_another_thread_may_count_between_any_two_lines() -> None:
    meter = SharedRowsMeter({"a": 64, "b": 64})
    a, b = draw(2000, 1), draw(2000, 2)
    counted: list[dict[str, float]] = []

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:  # noqa: ARG001
        if frame.f_code.co_filename != shared_rows_module.__file__:
            return None
        sys.settrace(None)
        counted.append(meter.counts())
        sys.settrace(trace)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for of_a, of_b in zip(a, b, strict=True):
            meter.show({"a": of_a, "b": of_b}, {})
    finally:
        sys.settrace(before)
    assert len(counted) > 10 * len(CHUNKS)
    assert not counted[0]
    assert counted[-1]["sharing_seen"] > sum(CHUNKS[:-1])


def test_lists_count_by_their_ids_and_not_as_examples() -> None:
    meter = SharedRowsMeter({"list": 4, "one": 1 << 20}, frozenset({"list"}))
    meter.show({"list": draw(1000, 1)[2], "one": draw(3, 2)[1]}, {})
    counts = meter.counts()
    assert counts["shared_rows/list"] == 1.0
    assert counts["sharing_examples"] == 0.0


def test_of_a_large_table_the_first_rows_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_rows_module, "TRACKED_ROWS", 2048)
    meter = SharedRowsMeter({"a": 8192, "b": 100})
    found = {"a": draw(4000, 1), "b": draw(1, 2)}
    for a, b in zip(found["a"], found["b"], strict=True):
        meter.show({"a": a, "b": b}, {})
    exact = sharing(np.concatenate(found["a"]), 8192).mean()
    counts = meter.counts()
    assert counts["shared_rows/a"] == pytest.approx(exact, abs=0.05)
    assert counts["sharing_examples"] == pytest.approx(exact, abs=0.05)


def test_nothing_is_counted_while_told_so() -> None:
    meter = SharedRowsMeter({"a": 4})
    meter.counting = False
    meter.show({"a": draw(100, 1)[2]}, {})
    assert meter.counts() == {}
