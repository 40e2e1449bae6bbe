"""Checkpoints that are copied while rows change: a few MB at a time, and of one moment all the same."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shadowsync.nodes.embedding import shard_checkpoints
from shadowsync.nodes.embedding.row_views import ServedRows
from shadowsync.nodes.embedding.shard_checkpoints import MOST_PASSES
from shadowsync.nodes.embedding.shard_part import ShardPart
from shadowsync.pipeline.checkpoint import files as files_module
from shadowsync.pipeline.checkpoint.files import FileEntry
from shadowsync.pipeline.checkpoint.manifest import begin, open_checkpoint
from shadowsync.pipeline.checkpoint.store.contract import PartTarget
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.embedding.storage.saved_tables import SavedTables
from shadowsync.pipeline.errors import ResourceError
from shadowsync.pipeline.types import Int32Array
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.tables.embedding_node import DIM, ENOUGH_SECONDS, ROWS, Node, Serving, job_of
from shadowsync.tests.support.tables.node_checkpoints import arrays_of, assert_saved, numbers, take
from shadowsync.tests.support.tables.saved_shards import manifest_of_files

CHANGED: Int32Array = np.arange(0, ROWS, 5, dtype=np.int32)


def push(node: Node, number: int, rows: Int32Array) -> None:
    """A push of ones between two commands, from any thread."""
    service = node.role.service

    def apply() -> None:
        (dim,) = service.store.dims
        service.store.apply(rows, np.ones(len(rows) * dim, np.float32))
        service.applied.add(batch_id(number))

    service.run_blocking(apply)


def most_memory(node: Node, work: Callable[[], object]) -> int:
    """The most bytes that the node takes at once between two messages, until `work` is done."""
    service = node.role.service
    call, most = service.call, 0

    def measured(command: Callable[[], object]) -> None:
        def run() -> None:
            nonlocal most
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            command()
            most = max(most, tracemalloc.get_traced_memory()[1] - before)

        call(run)

    tracemalloc.start()
    try:
        service.call = measured  # type: ignore[method-assign]
        work()
    finally:
        service.call = call  # type: ignore[method-assign]
        tracemalloc.stop()
    return most


def test_changed_rows_are_copied_a_few_at_a_time(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "PIECE_BYTES", 1 << 16)
    tree = job_of().model_dump()
    rows, dim = 100_000, 64
    tree["model"] |= {"table_rows": rows, "embedding_dim": dim}
    changed: Int32Array = np.arange(0, rows, 5, dtype=np.int32)
    changed_bytes = len(changed) * dim * 4
    with serving(Job.model_validate(tree)) as node:

        def most(copied_at_once_bytes: int, number: int) -> int:
            monkeypatch.setattr(shard_checkpoints, "COPIED_AT_ONCE_BYTES", copied_at_once_bytes)
            push(node, number, changed)
            return most_memory(node, lambda: take(node, tmp_path))

        assert most(1 << 20, 0) < changed_bytes / 4, "all rows"
        # Numbers of rows are found at once, and are an eighth of a piece.
        assert most(1 << 20, 1) < changed_bytes / 4
        # The control: copied at once, they are in memory together.
        assert most(1 << 30, 2) >= changed_bytes
        assert len(SavedTables(*open_checkpoint(tmp_path)).applied(0)) == 3


class Busy:
    """Pushes to a node after each piece that is copied, and once more before the last files are written."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches = self.while_copied = 0
        # Rows and applied batches of the last moment.
        self.moment: tuple[dict[str, np.ndarray[Any, Any]], int] = ({}, 0)
        self._node = node
        self._random = np.random.default_rng(1)
        read, write = ServedRows.__array__, ShardPart.write

        def reads(own: ServedRows, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
            rows = read(own, dtype, copy)
            self.push_some()
            self.while_copied += 1
            return rows

        def writes(part: ShardPart, directory: Path | PartTarget) -> list[FileEntry]:
            if part.applied is not None:
                self.moment = arrays_of(node), self.batches
                self.push_some()
            return write(part, directory)

        monkeypatch.setattr(ServedRows, "__array__", reads)
        monkeypatch.setattr(ShardPart, "write", writes)

    def push(self, rows: Int32Array) -> None:
        push(self._node, self.batches, rows)
        self.batches += 1

    def push_some(self) -> None:
        """Push to some of the last rows, some of which have changed before."""
        self.push(self._random.integers(ROWS - 20, ROWS, 10).astype(np.int32))


@pytest.fixture
def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few rows, and files whose headers count for nothing beside the rows."""
    monkeypatch.setattr(files_module, "PIECE_BYTES", 250)
    monkeypatch.setattr(shard_checkpoints, "LARGEST_CHANGES", 100.0)


@pytest.mark.usefixtures("in_small_pieces")
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
@pytest.mark.parametrize(
    ("copied_at_once_bytes", "passes"), [(0, MOST_PASSES), (20 * (2 * 4 * DIM + 8), 2)], ids=["many", "few"]
)
def test_rows_that_change_meanwhile_are_of_the_last_moment(
    serving: Serving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    optimizer: str,
    copied_at_once_bytes: int,
    passes: int,
) -> None:
    """And the passes are bounded, however many rows change."""
    monkeypatch.setattr(shard_checkpoints, "COPIED_AT_ONCE_BYTES", copied_at_once_bytes)
    with serving(job_of(optimizer=optimizer)) as node:
        busy, last = Busy(node, monkeypatch), -1
        for what in ("all rows", "changes", "changes"):
            busy.push(CHANGED)
            copied = busy.while_copied
            files = take(node, tmp_path)
            last += passes
            assert numbers(files) == list(range(last + 1)), what
            assert busy.while_copied > copied + 3, what
            wanted, batches = busy.moment
            assert_saved(tmp_path, wanted, batches)
            # The controls: it is neither of a later moment, nor of an earlier one.
            assert (arrays_of(node)["weights"] != wanted["weights"]).any(), what
            without = SavedTables(tmp_path / "checkpoint", manifest_of_files(files[:-1]))
            assert (without.read("C1", 0, ROWS) != wanted["weights"]).any(), what


@pytest.mark.usefixtures("in_small_pieces")
@pytest.mark.parametrize("failing", range(MOST_PASSES))
def test_no_changed_row_is_lost_with_a_pass_that_fails(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    monkeypatch.setattr(shard_checkpoints, "COPIED_AT_ONCE_BYTES", 0)
    with serving(job_of()) as node:
        busy = Busy(node, monkeypatch)
        whole = take(node, tmp_path)
        was, batches = busy.moment
        busy.push(CHANGED)
        write, written = ShardPart.write, list[ShardPart]()

        def fails(part: ShardPart, directory: Path | PartTarget) -> list[FileEntry]:
            written.append(part)
            if len(written) == failing + 1:
                raise ResourceError("no room", where=str(directory), remedy="make some")
            return write(part, directory)

        with monkeypatch.context() as patch:
            patch.setattr(ShardPart, "write", fails)
            with pytest.raises(ResourceError, match="no room"):
                node.checkpoint(begin(tmp_path), running=True).result(ENOUGH_SECONDS)
        assert len(written) == failing + 1
        assert_saved(tmp_path, was, batches)
        files = take(node, tmp_path)
        assert files[: len(whole)] == whole
        assert_saved(tmp_path, *busy.moment)
        # The control: what was to be written by then is not what was there before.
        assert (busy.moment[0]["weights"][CHANGED] != was["weights"][CHANGED]).all()
