"""A model that follows a running job's checkpoints replaces what changed in place, and is that of the whole.

Requests that are scored meanwhile are scored by one checkpoint each.
"""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from shadowsync.pipeline.errors import CheckpointError
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.pipeline.types import Uint64Array
from shadowsync.serving.follower import FollowedModel
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.checkpoint_copies import kept_checkpoints
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.outside.served import replies_while_replaced

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
def copies(tmp_path: Path) -> Iterator[Callable[[], list[Path]]]:
    """Copies of every checkpoint of the jobs of this test, in order."""
    with kept_checkpoints(tmp_path) as found:
        yield found


@pytest.mark.matrix
def test_a_followed_model_is_the_one_that_is_opened(
    cluster: ClusterMaker, log: Path, copies: Callable[[], list[Path]], tmp_path: Path
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
            # A center would be the same in two checkpoints without a round between them.
            "sync": {"algorithm": "none"},
        }
    ).start()
    wait_until(
        lambda: len(copies()) >= 5 or own.coordinator.poll() is not None, "five checkpoints are written"
    )
    own.coordinator.interrupt()
    own.wait()
    # The last one, of the interrupt, may have no more examples than the one before.
    found = copies()[:5]
    assert len(found) == 5, own.coordinator.text()
    users, items = pq.read_table(log).columns[:2]
    rows = {"user": users.to_pylist()[:3000], "item": items.to_pylist()[:3000]}
    follow_by_hand(found, rows)
    follow_in_bfloat16(found, rows)
    followed = need_of(found, lambda model, copy: model.update(copy).apply())
    opened = need_of(found, lambda _, copy: SavedModel.open(copy))
    # A second copy, of the table that does not grow alone, is 1.28 MB.
    assert followed < 20_000 * 16 * 4 < opened, "the control needs a second copy"
    serve_while_they_change(found, {name: values[:40] for name, values in rows.items()}, tmp_path)
    _damage(found[-1])
    with pytest.raises(CheckpointError, match="SHA-256 differs"):
        SavedModel.open(found[-2]).update(found[-1])


def follow_by_hand(copies: list[Path], rows: Mapping[str, list[int]]) -> None:
    model, first = SavedModel.open(copies[0]), SavedModel.open(copies[0])
    before = first.predict(rows)
    changed = list[int]()
    for copy in copies[1:]:
        update, whole = model.update(copy), SavedModel.open(copy)
        assert (model.predict(rows) != whole.predict(rows)).any(), "the control: nothing is applied yet"
        changed.append(update.changed_bytes)
        model = update.apply()
        assert model.manifest == whole.manifest
        for name, table in whole.tables.items():
            np.testing.assert_array_equal(model.tables[name].weights, table.weights)
            assert model.tables[name].rows == table.rows
        np.testing.assert_array_equal(_users(model), _users(whole))
        np.testing.assert_array_equal(model.predict(rows), whole.predict(rows))
    assert sum(changed) > 0
    # The controls: rows changed, users went, and another model of the first checkpoint is what it was.
    np.testing.assert_array_equal(first.predict(rows), before)
    assert (before != model.predict(rows)).any()
    assert not np.isin(_users(first), _users(model)).all()
    # An earlier one is opened whole, and changes nothing.
    back, last = model.update(copies[0]), model.predict(rows)
    assert not back.in_place
    np.testing.assert_array_equal(back.apply().predict(rows), before)
    np.testing.assert_array_equal(model.predict(rows), last)


def follow_in_bfloat16(copies: list[Path], rows: Mapping[str, list[int]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
        model = SavedModel.open(copies[0], precision="bfloat16")
        before, whole = model.predict(rows), SavedModel.open(copies[1], precision="bfloat16")
        update = model.update(copies[1])
        assert update.in_place
        found = update.apply()
        assert found.precision == found.update(copies[0]).apply().precision == "bfloat16"
        np.testing.assert_array_equal(found.predict(rows), whole.predict(rows))
        assert (found.predict(rows) != before).any(), "the control"


def need_of(copies: list[Path], newer: Callable[[SavedModel, Path], SavedModel]) -> int:
    """The most bytes, beside the first model's, to get at the last in small steps."""
    model = SavedModel.open(copies[0])
    tracemalloc.start()
    try:
        for copy in copies[1:]:
            model = newer(model, copy)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def serve_while_they_change(copies: list[Path], rows: Mapping[str, list[int]], folder: Path) -> None:
    """Every answer is that of the checkpoint that it names, to the bit, whatever changes meanwhile."""
    wanted = {}
    for copy in copies:
        model = SavedModel.open(copy)
        wanted[model.manifest.examples_trained] = model.predict(rows)
    for one, other in combinations(wanted.values(), 2):
        assert (one != other).mean() > 0.5, "the control: they differ"
    run = folder / "served"
    shutil.copytree(copies[0], run / "checkpoint")
    by_examples = dict(zip(wanted, copies, strict=True))
    served = FollowedModel(run, "last")
    for reply in replies_while_replaced(served, run, by_examples, "score", {"columns": rows}):
        values = np.array(reply["probabilities"], np.float32)
        np.testing.assert_allclose(values, wanted[reply["model"]["examples_trained"]], rtol=1e-6)


def _users(model: SavedModel) -> Uint64Array:
    """The hashes of the users that have a row."""
    return present(model.tables["user"].grown).keys


def _damage(folder: Path) -> None:
    """Changes one byte of the dense part."""
    (file,) = folder.glob("dense-*")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
