"""A model that follows the checkpoints of a running job reads what changed, and is that of the whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.checkpoint import manifest as manifest_module
from shadowsync.pipeline.checkpoint import run_checkpoints
from shadowsync.pipeline.checkpoint.manifest import CheckpointManifest
from shadowsync.pipeline.embedding.storage.loaded_tables import LoadedTables
from shadowsync.pipeline.embedding.storage.saved_changes import SavedChanges
from shadowsync.pipeline.errors import CheckpointError
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.pipeline.types import Uint64Array
from shadowsync.tests.support.in_process_cluster import InProcessCluster
from shadowsync.tests.support.processes import wait_until

EXAMPLES = 20_000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Users that come and go, and items of which few are there at a time."""
    rng = np.random.default_rng(1)
    user = np.arange(EXAMPLES) // 5 + rng.integers(0, 100, EXAMPLES)
    item = np.arange(EXAMPLES) // 10 + rng.integers(0, 200, EXAMPLES)
    clicked = (rng.random(EXAMPLES) < 0.5).astype(np.int8)
    path = tmp_path / "log.parquet"
    pq.write_table(
        pa.table({"user": user * 7919, "item": item, "clicked": clicked}), path, row_group_size=1000
    )
    return path


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Path]]:
    """Copies of every checkpoint of the jobs of this test, in order."""
    commit = manifest_module.commit

    def kept(partial: Path, manifest: CheckpointManifest) -> Path:
        current = commit(partial, manifest)
        shutil.copytree(current, tmp_path / f"copy-{len(found()):03d}")
        return current

    def found() -> list[Path]:
        return sorted(tmp_path.glob("copy-*"))

    monkeypatch.setattr(run_checkpoints, "commit", kept)
    return found


def test_a_followed_model_is_the_one_that_is_opened(
    cluster: Callable[..., InProcessCluster],
    log: Path,
    copies: Callable[[], list[Path]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = cluster(
        {
            "data": {
                "path": str(log),
                "eval_path": None,
                "columns": {"user": "categorical", "item": "categorical", "clicked": "label"},
                "shuffle_window": 0,
                "epochs": 100,
            },
            "model": {"name": "wide_deep", "top": [8], "table_rows": 20_000},
            "trainer": {"count": 1, "batch": 100, "lr": 0.02},
            "embedding": {"nodes": 2},
            "tables": {"user": {"kind": "growing", "rows": 500}},
            "checkpoint": {"every_examples": 1_000},
        }
    ).start()
    wait_until(
        lambda: len(copies()) >= 5 or own.coordinator.poll() is not None, "five checkpoints are written"
    )
    assert len(copies()) >= 5, own.coordinator.text()
    own.coordinator.interrupt()
    own.wait(60.0)
    followed = list[int]()
    with_changes = LoadedTables.with_changes

    def counted(self: LoadedTables, changes: Sequence[SavedChanges]) -> LoadedTables:
        followed.append(len(changes))
        return with_changes(self, changes)

    monkeypatch.setattr(LoadedTables, "with_changes", counted)
    users, items = pq.read_table(log).columns[:2]
    rows = {"user": users.to_pylist()[:3000], "item": items.to_pylist()[:3000]}
    model, first = SavedModel.open(copies()[0]), SavedModel.open(copies()[0])
    for copy in copies()[1:]:
        model, whole = model.newer(copy), SavedModel.open(copy)
        assert model.manifest == whole.manifest
        for name, table in whole.tables.items():
            np.testing.assert_array_equal(model.tables[name].weights, table.weights)
        np.testing.assert_array_equal(_users(model), _users(whole))
        np.testing.assert_array_equal(model.predict(rows), whole.predict(rows))
    assert followed
    assert sum(followed) > 0
    # The controls: rows changed, users went, and the first model is what it was.
    again = SavedModel.open(copies()[0])
    np.testing.assert_array_equal(first.predict(rows), again.predict(rows))
    assert (first.predict(rows) != model.predict(rows)).any()
    assert not np.isin(_users(first), _users(model)).all()
    # An earlier one is opened whole.
    before = len(followed)
    np.testing.assert_array_equal(model.newer(copies()[0]).predict(rows), again.predict(rows))
    assert len(followed) == before
    _damage(copies()[-1])
    with pytest.raises(CheckpointError, match="SHA-256 differs"):
        SavedModel.open(copies()[-2]).newer(copies()[-1])


def _users(model: SavedModel) -> Uint64Array:
    """The hashes of the users that have a row."""
    grown = model.tables["user"].grown
    assert grown is not None
    return grown.keys


def _damage(folder: Path) -> None:
    """Changes one byte of the dense part."""
    (file,) = folder.glob("dense-*")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
