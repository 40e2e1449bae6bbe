"""Checkpoints of a shard that serves: all rows or those that changed, whatever becomes of the ones before."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.nodes.embedding import shard_checkpoints
from shadowsync.nodes.embedding.row_views import ServedRows
from shadowsync.nodes.embedding.shard_checkpoints import MOST_CHANGES, MOST_PASSES
from shadowsync.pipeline.checkpoint import files as files_module
from shadowsync.pipeline.checkpoint.manifest import begin, commit, open_checkpoint
from shadowsync.pipeline.embedding.storage import store as store_module
from shadowsync.pipeline.embedding.storage.loaded_tables import LoadedTables
from shadowsync.pipeline.embedding.storage.saved_changes import parse_role
from shadowsync.pipeline.embedding.storage.saved_tables import SavedTables
from shadowsync.pipeline.errors import ClusterError
from shadowsync.pipeline.types import Int32Array
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.tables.embedding_node import (
    DIM,
    ENOUGH_SECONDS,
    EVERY_ROW,
    ROWS,
    Node,
    Serving,
    job_of,
)
from shadowsync.tests.support.tables.node_checkpoints import arrays_of, assert_saved, numbers, take
from shadowsync.tests.support.tables.saved_shards import manifest_of_files

FEW: Int32Array = np.arange(0, 20, 2, dtype=np.int32)


@pytest.fixture(params=[0, 1 << 20], ids=["in pieces", "at once"])
def copied_at_once_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(shard_checkpoints, "COPIED_AT_ONCE_BYTES", request.param)
    return int(request.param)


@settings(max_examples=10)
@given(
    steps=st.lists(
        st.tuples(st.lists(st.integers(0, ROWS - 1), max_size=90), st.booleans()), min_size=1, max_size=12
    )
)
def test_the_last_committed_one_has_the_rows_of_its_moment(
    tmp_path_factory: pytest.TempPathFactory,
    serving: Serving,
    copied_at_once_bytes: int,
    steps: list[tuple[list[int], bool]],
) -> None:
    del copied_at_once_bytes
    run = tmp_path_factory.mktemp("run")
    with serving(job_of(optimizer="rowwise_adagrad")) as node:
        take(node, run)
        wanted, batches = arrays_of(node), 0
        for number, (rows, committed) in enumerate(steps):
            node.push(batch_id(number), np.array(rows, np.int32))
            take(node, run, committed=committed)
            if committed:
                wanted, batches = arrays_of(node), number + 1
            assert_saved(run, wanted, batches)


def test_it_has_only_what_changed(serving: Serving, tmp_path: Path, copied_at_once_bytes: int) -> None:
    with serving(job_of()) as node:
        first = take(node, tmp_path)
        assert numbers(first) == ([0] if copied_at_once_bytes else [0, 1])
        node.push(batch_id(0), FEW)
        second = take(node, tmp_path)
        # What was there stays as it is.
        assert second[: len(first)] == first
        changes, *moment = second[len(first) :]
        # What was copied in pieces is followed by what changed meanwhile: nothing.
        assert [one.bytes < 500 for one in moment] == ([] if copied_at_once_bytes else [True])
        reader = SavedTables(*open_checkpoint(tmp_path))
        changed = np.flatnonzero((reader.read("C1", 0, ROWS) != start_rows(node, FEW)).any(axis=1))
        np.testing.assert_array_equal(changed, FEW)
        # Numbers of rows, rows, the applied batches and a header.
        assert len(FEW) * (8 + 4 * DIM) < changes.bytes < len(FEW) * (8 + 4 * DIM) + 1000
        # The control: were it all rows, it would be this large.
        assert first[0].bytes > ROWS * 4 * DIM > changes.bytes


def start_rows(node: Node, pushed: Int32Array) -> np.ndarray[Any, Any]:
    """The rows before one push of ones to `pushed`."""
    rows = node.look_up()
    rows[pushed] += 1
    return rows


def test_without_its_changes_a_checkpoint_is_of_an_earlier_moment(serving: Serving, tmp_path: Path) -> None:
    """The control of the tests here: the files of changes are what they compare."""
    with serving(job_of()) as node:
        take(node, tmp_path)
        before = arrays_of(node)
        node.push(batch_id(0), FEW)
        files = take(node, tmp_path)
        folder, _ = open_checkpoint(tmp_path)
        whole = [entry for entry in files if parse_role(entry.role) == (0, 0)]
        saved = SavedTables(folder, manifest_of_files(whole))
        np.testing.assert_array_equal(saved.read("C1", 0, ROWS), before["weights"])
        assert (saved.read("C1", 0, ROWS) != node.look_up()).any()


def test_after_many_changes_they_are_written_together_and_after_too_much_all_rows(
    serving: Serving, tmp_path: Path
) -> None:
    with serving(job_of()) as node:
        take(node, tmp_path)
        seen = []
        for number in range(MOST_CHANGES + 2):
            node.push(batch_id(number), FEW[:2])
            seen.append(numbers(take(node, tmp_path)))
        assert seen[MOST_CHANGES - 1] == list(range(MOST_CHANGES + 1))
        assert seen[MOST_CHANGES] == [0, MOST_CHANGES + 1]
        assert seen[MOST_CHANGES + 1] == [0, MOST_CHANGES + 1, MOST_CHANGES + 2]
        assert_saved(tmp_path, arrays_of(node), MOST_CHANGES + 2)
        node.push(batch_id(99))
        assert numbers(take(node, tmp_path)) == [0]
        assert_saved(tmp_path, arrays_of(node), MOST_CHANGES + 3)


def test_a_reader_of_an_earlier_one_needs_only_what_changed(serving: Serving, tmp_path: Path) -> None:
    job, run, copies = job_of(), tmp_path / "run", list[SavedTables]()
    # Changes kept, changes written together, and all rows again.
    pushed = [FEW, *[FEW + number for number in range(MOST_CHANGES + 1)], EVERY_ROW, FEW]
    with serving(job) as node:
        for number, rows in enumerate(pushed):
            node.push(batch_id(number), rows)
            # One that is abandoned has the number of the next one.
            take(node, run, committed=number != 2)
            copy = tmp_path / f"copy-{number}"
            shutil.copytree(run / "checkpoint", copy)
            copies.append(SavedTables(*open_checkpoint(copy)))
    loaded = [LoadedTables(one, job.tables) for one in copies]
    followed = 0
    for before, after in combinations(range(len(copies)), 2):
        since = copies[after].changes_since(copies[before])
        if since is None:
            continue
        followed += 1
        was, wanted = loaded[before].table("C1"), loaded[after].table("C1")
        changed = LoadedTables(copies[before], job.tables)
        changes = changed.read(since.changes)
        np.testing.assert_array_equal(changed.table("C1"), was)
        changed.apply(changes)
        np.testing.assert_array_equal(changed.table("C1"), wanted)
        assert (since.files == []) == (was == wanted).all() == (copies[before]._parts == copies[after]._parts)
        # Back to an earlier one there is no way.
        assert not since.files or copies[before].changes_since(copies[after]) is None
    whole_again = len(pushed) - 2
    assert followed == len(list(combinations(range(whole_again), 2))) + 1


def test_rows_that_change_while_all_are_written_are_of_the_end(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push comes when half of the rows are copied: both halves have it in the end."""
    monkeypatch.setattr(shard_checkpoints, "COPIED_AT_ONCE_BYTES", 0)
    monkeypatch.setattr(files_module, "PIECE_BYTES", ROWS * DIM * 4 // 2)
    with held_copy(monkeypatch) as (holding, go_on), serving(job_of()) as node:
        before = node.look_up()
        partial = begin(tmp_path)
        reply = node.checkpoint(partial, running=True)
        assert holding.wait(ENOUGH_SECONDS)
        node.push(batch_id(0))
        assert not reply.done()
        go_on.set()
        files = list(reply.result(ENOUGH_SECONDS).files)
        commit(partial, manifest_of_files(files))
        assert_saved(tmp_path, arrays_of(node), 1)
        # The control: what was written first is a mixture.
        whole = SavedTables(tmp_path / "checkpoint", manifest_of_files(files[:1])).read("C1", 0, ROWS)
        half = ROWS // 2
        np.testing.assert_array_equal(whole, np.concatenate([before[:half], node.look_up()[half:]]))
        assert (before != node.look_up()).all()


@contextmanager
def held_copy(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """The first rows that are copied are there, but not handed on before the second event."""
    holding, go_on = threading.Event(), threading.Event()
    read = ServedRows.__array__

    def held(self: ServedRows, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        rows = read(self, dtype, copy)
        holding.set()
        assert go_on.wait(ENOUGH_SECONDS)
        return rows

    monkeypatch.setattr(ServedRows, "__array__", held)
    try:
        yield holding, go_on
    finally:
        go_on.set()


def test_a_node_that_ends_meanwhile_keeps_nobody_waiting(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_checkpoints, "COPIED_AT_ONCE_BYTES", 0)
    read = ServedRows.__array__

    def ends(self: ServedRows, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        service = node.role.service
        service.stop()
        assert service.join(ENOUGH_SECONDS)
        return read(self, dtype, copy)

    monkeypatch.setattr(ServedRows, "__array__", ends)
    with serving(job_of()) as node:
        reply = node.checkpoint(begin(tmp_path), running=True)
        with pytest.raises(ClusterError, match="ended before its work"):
            reply.result(ENOUGH_SECONDS)


def test_where_there_are_no_links_every_one_has_all_rows(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    with serving(job_of()) as node:
        take(node, tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(os, "link", refuse)
            node.push(batch_id(0), FEW)
            assert numbers(take(node, tmp_path)) == [0]
        assert_saved(tmp_path, arrays_of(node), 1)
        # It is not tried again.
        node.push(batch_id(1), FEW)
        assert numbers(take(node, tmp_path)) == [0]
        assert_saved(tmp_path, arrays_of(node), 2)


def test_when_moments_are_used_up_all_rows_are_written(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied_at_once_bytes: int
) -> None:
    monkeypatch.setattr(store_module, "LAST_CHANGE_EPOCH", MOST_PASSES + 6)
    whole = [0] if copied_at_once_bytes else [0, 1]
    with serving(job_of()) as node:
        seen = []
        for number in range(10):
            node.push(batch_id(number), FEW)
            seen.append(numbers(take(node, tmp_path)))
            assert_saved(tmp_path, arrays_of(node), number + 1)
    assert seen.count(whole) > 1
    # The control: with more moments the first one would be the only one.
    assert whole != seen[1] != seen[2]


def test_another_nodes_files_of_the_same_names_are_not_taken(serving: Serving, tmp_path: Path) -> None:
    """The second node's own checkpoint is lost; the first one's is still there."""
    with serving(job_of()) as node:
        take(node, tmp_path)
    with serving(job_of()) as node:
        node.push(batch_id(0), EVERY_ROW[:30])
        take(node, tmp_path, committed=False)
        node.push(batch_id(1), FEW)
        assert numbers(take(node, tmp_path)) == [0]
        assert_saved(tmp_path, arrays_of(node), 2)
