"""Other layouts of the same job: more nodes of each kind, other modes and algorithms, other input."""

from __future__ import annotations

from pathlib import Path

import pytest
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.evaluate_run import evaluate_run
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES

MODEL = '''
import torch
from torch import nn


class OwnModel(nn.Module):
    """A logistic regression on the sum of all embeddings and the dense features."""

    def __init__(self, dense_features, embedding_dims, scale=1.0):
        super().__init__()
        self.scale = scale
        self.own_layer = nn.Linear(dense_features + embedding_dims[0], 1)

    def forward(self, dense, embeddings):
        joined = torch.cat([dense, torch.stack(embeddings).sum(0)], 1)
        return self.own_layer(joined).squeeze(1) * self.scale
'''


def test_several_of_everything(cluster: ClusterMaker, text_log: Path) -> None:
    """Two readers, two workers in each of two trainers, two embedding nodes with split tables, two sync
    nodes, two epochs of compressed text in three files."""
    text = {
        "format": "criteo_tsv",
        "path": str(text_log / "train-*.tsv.gz"),
        "eval_path": str(text_log / "eval-*.tsv.gz"),
    }
    # Otherwise one reader may be done with all of them before the other asks.
    slowed = Slowed(at=1)
    own = cluster(
        {
            "data": text | {"epochs": 2, "readers": 2},
            "trainer": {"workers": 2},
            "embedding": {"nodes": 2},
            "sync": {"nodes": 2},
        },
        faults=(slowed,),
    ).start()
    spans_of = "SELECT DISTINCT reader FROM spans"
    wait_until(lambda: len(own.run.query(spans_of)) == 2, "both readers have a span")
    slowed.release()
    report = own.ended()
    assert report.examples.trained == report.examples.distinct == 2 * 6000
    assert report.elp == 128 * 2 * 2
    assert own.run.evaluation.examples == 1000
    assert set(report.ledger.shard_applied) == {"embedding-0", "embedding-1"}
    assert set(report.ledger.shard_applied.values()) == {own.run.batches()}
    # Both readers worked, and each of the three files was read once in either epoch.
    spans = own.run.query("SELECT epoch, path, reader, examples FROM spans")
    assert {reader for _, _, reader, _ in spans} == {"reader-0", "reader-1"}
    assert len({(epoch, path) for epoch, path, _, _ in spans}) == len(spans) == 6
    folder, manifest = open_checkpoint(own.run.folder, verify=True)
    shards = [entry for entry in manifest.files if entry.role.startswith("embedding-")]
    assert {entry.role for entry in shards} == {"embedding-0", "embedding-1"}
    tables = TensorReader(folder, shards)
    assert {tables.shape(name) for name in tables.names if name.endswith(".weights")} == {(2000, 8)}
    assert sum(name.endswith(".weights") for name in tables.names) == 26
    elements = 0
    for node in range(2):
        center = TensorReader(folder, [e for e in manifest.files if e.role == f"sync-{node}"])
        elements += center.shape("center")[0]
    replica = TensorReader(folder, [e for e in manifest.files if e.role == "trainer-1"])
    assert replica.shape("replica") == (elements,)
    dense = TensorReader(folder, [e for e in manifest.files if e.role == "dense"])
    assert dense.names


def test_fixed_rate_runs_a_round_after_every_k_iterations(cluster: ClusterMaker) -> None:
    run = finished(cluster, {"sync": {"mode": "fixed", "every": 5}})
    report = run.report
    assert report.sync.mode == "fixed"
    iterations = run.query("SELECT trainer, count(*) FROM batches GROUP BY trainer")
    # Each of the two trainers has a closing round as well, after training.
    assert report.sync.rounds == sum(count // 5 for _, count in iterations) + 2
    assert report.sync.gap_max == 5


def test_without_synchronization_the_score_is_the_mean_of_the_replicas(cluster: ClusterMaker) -> None:
    own = cluster({"sync": {"algorithm": "none"}}).start()
    assert set(own.nodes) == {"coordinator", "reader", "trainer", "embedding"}
    report = own.ended()
    assert report.sync.rounds == 0
    assert report.sync.bytes == 0
    assert report.sync.gap_max is None
    assert own.run.evaluation.model == "the mean of the 2 replicas' own scores (none)"
    assert report.model_saved == "the replica of trainer-0 (none)"
    # The replica of trainer 0 is what was saved: its own score differs from the mean.
    scores = evaluate_run(own.run.folder, own.job.data.eval_path)
    assert scores["ne"] != pytest.approx(own.run.ne, abs=1e-7)
    assert scores["examples"] == own.run.evaluation.examples, "and not since others were scored"
    assert present(report.replicas.divergence) > 0.001


def test_easgd_with_an_own_model(
    cluster: ClusterMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_models.py").write_text(MODEL)
    changes = {
        "model": {"name": "own_models:OwnModel", "options": {"scale": 0.5}},
        "sync": {"algorithm": "easgd", "options": {"elastic_rate": 0.3}},
        "trainer": {"optimizer": "adam", "lr": 0.003},
    }
    run = finished(cluster, changes)
    report = run.report
    assert report.model_saved == "the center (easgd)"
    assert report.examples.trained == EXAMPLES
    folder, manifest = open_checkpoint(run.folder, verify=True)
    dense = TensorReader(folder, [e for e in manifest.files if e.role == "dense"])
    assert dense.names == ["own_layer.bias", "own_layer.weight"]
    assert dense.shape("own_layer.weight") == (1, 13 + 8)
