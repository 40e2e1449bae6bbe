"""An embedding node: checkpoints while it serves, and going on from one."""

from __future__ import annotations

import itertools
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shadowsync.nodes.embedding import shard_checkpoints
from shadowsync.nodes.embedding.shard_part import ShardPart
from shadowsync.pipeline.checkpoint.files import FileEntry
from shadowsync.pipeline.checkpoint.manifest import begin, commit, open_checkpoint
from shadowsync.pipeline.checkpoint.saved_ledger import SavedLedger
from shadowsync.pipeline.checkpoint.store import addresses
from shadowsync.pipeline.checkpoint.store.yielding import ThreadTimes, Yielding
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.embedding.storage.saved_tables import SavedTables
from shadowsync.pipeline.errors import JobFileError, ResourceError
from shadowsync.pipeline.text.format import data_size
from shadowsync.pipeline.types import Int32Array
from shadowsync.pipeline.wire.control.orders import WriteCheckpointReply
from shadowsync.pipeline.wire.messages import Pushed
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.tables.embedding_node import DIM, ENOUGH_SECONDS, ROWS, Serving, job_of
from shadowsync.tests.support.tables.saved_shards import manifest_of_files


def saved_in(folder: Path, reply: WriteCheckpointReply) -> SavedTables:
    return SavedTables(folder, manifest_of_files(list(reply.files)))


def test_rows_and_applied_batches_of_a_running_checkpoint_belong_together(
    serving: Serving, tmp_path: Path
) -> None:
    with serving(job_of()) as node:
        firsts = node.look_up()
        taken, number = [], 0
        for at in range(4):
            folder = tmp_path / str(at)
            folder.mkdir()
            reply = node.checkpoint(folder, running=True)
            # Pushes go on while it is copied and written.
            for _ in range(50):
                assert node.push(batch_id(number)) == Pushed(1, repeated=False)
                number += 1
            taken.append(saved_in(folder, reply.result(ENOUGH_SECONDS)))
            # The next one is of a later moment, however late this one was.
            assert node.push(batch_id(number)) == Pushed(1, repeated=False)
            number += 1
        for saved in taken:
            applied = len(saved.applied(0))
            np.testing.assert_allclose(saved.read("C1", 0, ROWS), firsts - applied, atol=1e-3)
        counts = [len(saved.applied(0)) for saved in taken]
        # The control: they are of different moments, and none of the last one.
        assert counts == sorted(set(counts))
        assert counts[-1] < number


def test_only_the_copy_is_made_on_the_thread_that_serves(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, writers, go_on = ShardPart.write, [], threading.Event()

    def held(part: ShardPart, directory: Path) -> list[FileEntry]:
        writers.append(threading.current_thread().name)
        assert go_on.wait(ENOUGH_SECONDS)
        return write(part, directory)

    monkeypatch.setattr(ShardPart, "write", held)
    with serving(job_of()) as node:
        before = node.look_up()
        reply = node.checkpoint(tmp_path, running=True)
        # It serves while the files are not written.
        node.push(batch_id(0))
        np.testing.assert_allclose(node.look_up(), before - 1, atol=1e-5)
        assert not reply.done()
        go_on.set()
        saved = saved_in(tmp_path, reply.result(ENOUGH_SECONDS))
        assert len(saved.applied(0)) in (0, 1)
        np.testing.assert_allclose(saved.read("C1", 0, ROWS), before - len(saved.applied(0)), atol=1e-5)
        # At the end of a job nothing is to be served, and no memory for a copy is needed.
        node.checkpoint(tmp_path).result(ENOUGH_SECONDS)
    assert writers[0] != "shard"
    assert writers[1] == "shard"


def test_one_that_yields_rests_while_it_writes_and_serves_meanwhile(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never on the thread that serves, and not where training waits for it."""
    rested, go_on = list[str](), threading.Event()

    def rest(_: float) -> None:
        rested.append(threading.current_thread().name)
        assert go_on.wait(ENOUGH_SECONDS)

    ran = itertools.count()
    scarce = partial(Yielding, lambda: ThreadTimes(1, (at := next(ran)), at), rest)
    monkeypatch.setattr(addresses, "Yielding", scarce)
    for name in ("final", "pause", "beside"):
        (tmp_path / name).mkdir()
    with serving(job_of()) as node:
        node.checkpoint(tmp_path / "final").result(ENOUGH_SECONDS)
        node.checkpoint(tmp_path / "pause", running=True).result(ENOUGH_SECONDS)
        assert rested == [], "the control: training waits for both"
        before = node.look_up()
        reply = node.checkpoint(tmp_path / "beside", running=True, yields=True)
        wait_until(lambda: rested, "it rests")
        node.push(batch_id(0))
        np.testing.assert_allclose(node.look_up(), before - 1, atol=1e-5)
        assert not reply.done()
        go_on.set()
        saved = saved_in(tmp_path / "beside", reply.result(ENOUGH_SECONDS))
        assert saved.read("C1", 0, ROWS).shape == (ROWS, DIM)
    assert "shard" not in rested


def test_rows_that_are_not_finite_take_no_good_checkpoints_place(serving: Serving, tmp_path: Path) -> None:
    with serving(job_of()) as node:
        assert node.checkpoint(tmp_path).result(ENOUGH_SECONDS).files
        (_, arrays) = next(node.role.service.store.pieces())
        weights = arrays["weights"]
        assert isinstance(weights, np.ndarray)
        weights[3, 0] = np.inf
        for while_training in (False, True):
            with pytest.raises(JobFileError, match=r"tensor .*weights has numbers that are not finite"):
                node.checkpoint(tmp_path, running=while_training).result(ENOUGH_SECONDS)


def test_without_memory_for_a_copy_a_running_checkpoint_is_refused(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(job_of()) as node:
        node.push(batch_id(0))
        # 0.8 of it (embedding.memory_fraction) are a byte less than the rows take.
        needed = ROWS * DIM * 4
        assert node.facts.checkpoint_bytes == needed
        available = int(needed / 0.8) - 1
        monkeypatch.setattr(shard_checkpoints, "available_memory_bytes", lambda: available)
        most = int(available * 0.8)
        assert needed == most + 1
        sizes = [data_size(size) for size in (needed, most, available)]
        said = "a copy of the rows .* {}, more than {}: 0.8 of {}".format(*sizes)
        with pytest.raises(ResourceError, match=said):
            node.checkpoint(tmp_path, running=True).result(ENOUGH_SECONDS)
        assert list(tmp_path.iterdir()) == []
        # At the end of a job nobody looks anything up, and it is written in place.
        at_the_end = node.checkpoint(tmp_path).result(ENOUGH_SECONDS)
        monkeypatch.setattr(shard_checkpoints, "available_memory_bytes", lambda: available + 2)
        copied = node.checkpoint(tmp_path, running=True).result(ENOUGH_SECONDS)
        for reply in (at_the_end, copied):
            np.testing.assert_array_equal(saved_in(tmp_path, reply).read("C1", 0, ROWS), node.look_up())


def save(serving: Serving, run: Path, nodes: int = 1) -> np.ndarray[Any, Any]:
    """A checkpoint of batches 0, 1 and 2, of which the ledger has 0 and 1; gives all rows."""
    partial = begin(run)
    files, tables = [], []
    for index in range(nodes):
        with serving(job_of(nodes), index) as node:
            here: Int32Array = np.arange(ROWS // nodes, dtype=np.int32)
            for number in range(3):
                node.push(batch_id(number), here)
            reply = node.checkpoint(partial).result(ENOUGH_SECONDS)
            files += reply.files
            tables.append(node.look_up(here))
    files += SavedLedger(1, {}, {(0, 0): {0: 5, 1: 5}}).write(partial)
    commit(partial, manifest_of_files(files))
    return np.concatenate(tables)


def test_a_resumed_node_does_not_apply_again_what_it_had_applied(serving: Serving, tmp_path: Path) -> None:
    rows = save(serving, tmp_path)
    with serving(job_of(checkpoint=str(tmp_path), resume=True)) as node:
        np.testing.assert_array_equal(node.look_up(), rows)
        # Batch 2 is in no ledger: it is trained again, and changes nothing.
        for number in range(3):
            assert node.push(batch_id(number)) == Pushed(1, repeated=True)
        np.testing.assert_array_equal(node.look_up(), rows)
        assert node.push(batch_id(3)) == Pushed(1, repeated=False)
        np.testing.assert_allclose(node.look_up(), rows - 1, atol=1e-5)
        metrics = node.role.metrics()
        assert (metrics["restored_batches"], metrics["applied_batches"]) == (3, 4)
        assert node.facts.restored_batches == 3
        assert node.facts.start_digest == open_checkpoint(tmp_path)[1].digest


def test_a_warm_start_takes_the_rows_and_trains_every_batch(serving: Serving, tmp_path: Path) -> None:
    rows = save(serving, tmp_path)
    with serving(job_of(checkpoint=str(tmp_path))) as node:
        np.testing.assert_array_equal(node.look_up(), rows)
        assert node.push(batch_id(0)) == Pushed(1, repeated=False)
        np.testing.assert_allclose(node.look_up(), rows - 1, atol=1e-5)


def test_other_nodes_than_saved_go_by_the_ledger(serving: Serving, tmp_path: Path) -> None:
    rows = save(serving, tmp_path, nodes=2)
    assert open_checkpoint(tmp_path)[1].files
    with serving(job_of(checkpoint=str(tmp_path), resume=True)) as node:
        np.testing.assert_array_equal(node.look_up(), rows)
        replies = [node.push(batch_id(number)) for number in range(3)]
    assert replies == [Pushed(1, repeated=repeated) for repeated in (True, True, False)]


def test_a_table_that_is_not_saved_is_told(serving: Serving, tmp_path: Path) -> None:
    save(serving, tmp_path)
    tree = job_of(checkpoint=str(tmp_path)).model_dump()
    tree["data"]["categorical_features"] = 2
    with serving(Job.model_validate(tree)) as node:
        assert node.facts.fresh_tables == ("C2",)
