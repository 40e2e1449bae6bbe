"""A checkpoint that is taken while training goes on is of one moment where it has to be, and whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from shadowsync.nodes.trainer.checkpoint import compose_model
from shadowsync.pipeline.checkpoint.manifest import (
    CheckpointManifest,
    has_checkpoint,
    kept_name,
    open_checkpoint,
    step_of,
)
from shadowsync.pipeline.checkpoint.saved_ledger import SavedLedger
from shadowsync.pipeline.embedding.storage.saved_changes import parse_role
from shadowsync.pipeline.embedding.storage.saved_tables import SavedTables
from shadowsync.pipeline.errors import CheckpointError
from shadowsync.pipeline.models.registry import build_model
from shadowsync.pipeline.models.training.flat import FlatLayout
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.pipeline.types import BatchId, Float32Array
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster, finished
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.resumed import Changed, going_on, same, tensors, trained_batches
from shadowsync.tests.support.jobs.runs import RunFolder, Settings

MODELS = {
    "easgd": ("center", "the center (easgd)", 2),
    "ma": ("mean", "the mean of the replicas (ma)", 0),
    "bmuf": ("global", "the global model (bmuf)", 0),
    "none": ("replicas", "the replica of trainer-0 (none)", 0),
}


def left_by_a_killed_job(cluster: ClusterMaker, algorithm: str, sync_nodes: int) -> InProcessCluster:
    """A job that is killed, all of it, after some checkpoints were taken while it trained."""
    own = cluster(
        {
            "data": {"epochs": 10_000},
            "embedding": {"nodes": 2},
            "sync": {"algorithm": algorithm, "nodes": sync_nodes},
            "checkpoint": {"every_examples": 1_000},
        }
    ).start()
    written = "shadowsync.nodes.coordinator.checkpoint.running"

    def several() -> bool:
        return len([line for line in own.run.log("coordinator") if line["logger"] == written]) >= 3

    wait_until(several, "three checkpoints are written")
    for node in own.everyone():
        node.kill()
    # A thread of it may be about to give the next checkpoint its name.
    own.coordinator.wait()
    return own


def expected(origin: str, saved: Mapping[str, Float32Array]) -> Float32Array:
    """The flat model that a checkpoint's other files make."""
    if origin == "center":
        return np.concatenate([saved["sync-0/center"], saved["sync-1/center"]])
    if origin == "global":
        return saved["algorithm/global"]
    if origin == "replicas":
        return saved["trainer-0/replica"]
    both = saved["trainer-0/replica"].astype(np.float64) + saved["trainer-1/replica"]
    return (both / 2).astype(np.float32)


@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=() if name == "easgd" else pytest.mark.matrix) for name in MODELS]
)
def test_it_is_whole_and_its_model_is_that_of_its_files(cluster: ClusterMaker, algorithm: str) -> None:
    origin, words, sync_nodes = MODELS[algorithm]
    own = left_by_a_killed_job(cluster, algorithm, sync_nodes)
    run = RunFolder(own.run.folder.resolve())
    folder, manifest = open_checkpoint(run.folder, verify=True)
    assert manifest.model == words
    saved = tensors(run)
    layout = FlatLayout(build_model(own.job))
    flat = torch.from_numpy(expected(origin, saved))
    for span, view in layout.views(flat):
        np.testing.assert_array_equal(saved[f"dense/{span.name}"], view.numpy())
    # Replicas that train by themselves are no model of both.
    assert not np.array_equal(saved["trainer-0/replica"], saved["trainer-1/replica"])
    # Every shard has what the ledger has: nothing that counts as trained is missing in any row.
    ledger = SavedLedger.read(folder, manifest.files)
    assert manifest.examples_trained == ledger.examples > 0
    tables = SavedTables(folder, manifest)
    for node in range(2):
        applied = tables.applied(node)
        for epoch, span, seed, start, stop in ledger.applied_ranges().tolist():
            assert all(BatchId(epoch, span, number, seed) in applied for number in range(start, stop))
        assert len(applied) >= ledger.batches
    if origin == "center":
        _check_that_no_part_may_lack(folder, manifest, layout.numel)


def _check_that_no_part_may_lack(folder: Path, manifest: CheckpointManifest, numel: int) -> None:
    assert compose_model(folder, manifest.files, "center", numel).shape == (numel,)
    one = [entry for entry in manifest.files if entry.role != "sync-1"]
    with pytest.raises(CheckpointError, match=f"saved [0-9,]+ of the model's {numel:,} elements"):
        compose_model(folder, one, "center", numel)
    with pytest.raises(CheckpointError, match="no replica"):
        compose_model(folder, [], "mean", numel)


@pytest.mark.parametrize("nodes", [3, pytest.param(1, marks=pytest.mark.matrix)])
def test_changed_rows_go_to_another_number_of_nodes(in_process: ClusterMaker, nodes: int) -> None:
    """The checkpoint has all rows of one moment and, in files of their own, what changed after it."""
    settings: Changed = {
        "data": {"epochs": 10_000},
        # So many that most are not used between two checkpoints.
        "model": {"table_rows": 20_000, "embedding_dim": 4, "bottom": [32], "top": [32]},
        "embedding": {"nodes": 2},
        "checkpoint": {"every_examples": 1_000},
    }
    own = in_process(settings).start()

    def has_changes() -> bool:
        if not has_checkpoint(own.run.folder):
            return False
        parts = {parse_role(entry.role) for entry in open_checkpoint(own.run.folder)[1].files}
        return parts >= {(0, 1), (1, 1)}

    wait_until(has_changes, "both shards have written changes")
    for node in own.everyone():
        node.kill()
    assert own.coordinator.wait() != 0
    first = RunFolder(own.run.folder.resolve())
    _, manifest = open_checkpoint(first.folder, verify=True)
    again = in_process(going_on(settings, first, {"embedding": {"nodes": nodes}})).start()
    again.wait_for_batches(20)
    report = again.interrupted()
    assert report.restored_examples == manifest.examples_trained > 0
    assert SavedTables(*open_checkpoint(again.run.folder, verify=True)).nodes == nodes


def test_a_job_goes_on_from_any_that_is_kept(cluster: ClusterMaker, validation_file: str) -> None:
    """What it had trained then is not trained again; training waits for each, so there are as many."""
    settings: Settings = {
        # A process that yields to all others hardly runs on a busy machine.
        "run": {"keep_checkpoints": 3, "background_priority": "normal"},
        "data": {"validation_path": validation_file},
        "validation": {"every_examples": 4_000, "wait": True},
    }
    run = finished(cluster, settings)
    steps = sorted(step for path in run.folder.iterdir() if (step := step_of(path.name)) is not None)
    assert len(steps) == 3
    assert steps[-1] == run.report.examples.trained
    for step in steps[:2]:
        again = finished(cluster, going_on({**settings, "start": {"which": kept_name(step)}}, run))
        assert sum(trained_batches(again).values()) == steps[-1] - step
    with pytest.raises(CheckpointError, match="take one of last, best, step-"):
        SavedModel.open(run.folder, kept_name(steps[0] - 1))
    last, *kept = (tensors(run, name) for name in ("checkpoint", *map(kept_name, steps)))
    assert [same(last, one) for one in kept] == [False, False, True]
