"""Tables of a checkpoint in one process give what the cluster that wrote them gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from shadowsync.pipeline.embedding.storage import loaded_tables
from shadowsync.pipeline.embedding.storage.loaded_tables import LoadedTables
from shadowsync.pipeline.embedding.storage.saved_tables import SavedTables
from shadowsync.pipeline.errors import CheckpointError
from shadowsync.tests.support.tables.embedding_cluster import EmbeddingCluster, draw_rows
from shadowsync.tests.support.tables.saved_shards import save_shards
from shadowsync.tests.support.tables.tables import make_table

TABLES = (
    make_table("one", 40, 4, optimizer="adagrad"),
    make_table("sums", 500, 4, pooling="sum"),
    make_table("wide", 30, 7),
    make_table("means", 60, 3, pooling="mean", lr=0.5),
)


@pytest.fixture
def cluster() -> EmbeddingCluster:
    """Three nodes that have trained."""
    made = EmbeddingCluster(TABLES, 3)
    for step in range(3):
        made.train(draw_rows(TABLES, 40, step))
    return made


@pytest.fixture
def saved(cluster: EmbeddingCluster, tmp_path: Path) -> SavedTables:
    """What the cluster wrote."""
    return save_shards(tmp_path, cluster.stores)


def test_embeddings_are_those_of_the_cluster(
    cluster: EmbeddingCluster, saved: SavedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Reads that end within the tables.
    monkeypatch.setattr(loaded_tables, "READ_BYTES", 100)
    loaded = LoadedTables(saved, TABLES)
    fresh = EmbeddingCluster(TABLES, 3)
    cut = [any(p.table == t and not cluster.plan.is_whole(p) for p in cluster.plan.pieces) for t in range(4)]
    assert cut == [False, True, False, False]
    for seed in range(5):
        drawn = draw_rows(TABLES, 50, seed, longest=20)
        got = loaded.embeddings(drawn).embeddings
        wanted = cluster.forward(drawn)[1].embeddings
        # Bit for bit, but for the sums of bags that several nodes have a part of.
        assert [torch.equal(one, other) for one, other in zip(got, wanted, strict=True)] == [
            not c for c in cut
        ]
        torch.testing.assert_close(got, [vectors.detach() for vectors in wanted], rtol=1e-4, atol=1e-6)
        assert not any(embedding.requires_grad for embedding in got)
        # The control: the rows before the training give others.
        firsts = fresh.forward(drawn)[1].embeddings
        assert not any(torch.equal(one, other) for one, other in zip(got, firsts, strict=True))


def test_rows_are_looked_up_by_the_name_of_their_table(cluster: EmbeddingCluster, saved: SavedTables) -> None:
    loaded = LoadedTables(saved, TABLES)
    assert loaded.names == ("one", "sums", "wide", "means")
    for number, name in enumerate(loaded.names):
        table = cluster.table(number)
        np.testing.assert_array_equal(loaded.table(name), table)
        rows = np.array([[3, 0], [len(table) - 1, 3]], np.int32)
        np.testing.assert_array_equal(loaded.lookup(name, rows), table[rows])
    for wrong in (-1, 40):
        with pytest.raises(IndexError, match="table one has rows 0 to 39"):
            loaded.lookup("one", np.array([wrong], np.int32))
    with pytest.raises(ValueError, match="read-only"):
        loaded.table("one")[0, 0] = 1.0


def test_tables_of_another_shape_are_refused(saved: SavedTables) -> None:
    with pytest.raises(CheckpointError, match="table wide has dim 7"):
        LoadedTables(saved, (*TABLES[:2], make_table("wide", 30, 8)))
    with pytest.raises(CheckpointError, match="no table two"):
        LoadedTables(saved, (make_table("two", 40, 4),))
    # Its optimizer is of no account where nothing is trained.
    LoadedTables(saved, (make_table("one", 40, 4, optimizer="sgd"),))


def test_tables_that_do_not_fit_lie_in_a_file(
    saved: SavedTables, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    needed = 4 * sum(table.rows * table.dim for table in TABLES)

    def have(available: int) -> None:
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available))

    have(needed)
    whole = LoadedTables(saved, TABLES)
    assert not caplog.records
    have(needed - 1)
    mapped = LoadedTables(saved, TABLES)
    assert "they are read from a file in /var/tmp" in caplog.text
    for name in whole.names:
        np.testing.assert_array_equal(whole.table(name), mapped.table(name))
    elsewhere = [replace(table, folder=str(tmp_path / "nowhere")) for table in TABLES]
    caplog.clear()
    LoadedTables(saved, elsewhere)
    assert "they are read from a file in /var/tmp" in caplog.text
    here = [replace(table, folder=str(tmp_path)) for table in TABLES]
    LoadedTables(saved, here)
    assert f"they are read from a file in {tmp_path}" in caplog.text
