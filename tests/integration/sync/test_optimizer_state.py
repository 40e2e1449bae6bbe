"""Jobs whose rounds carry the optimizer's state with the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.pipeline.types import Float32Array
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.resumed import going_on, interrupted
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder


def saved(run: RunFolder, role: str, tensor: str) -> Float32Array:
    """A tensor of a role's part of the last checkpoint."""
    folder, manifest = open_checkpoint(run.folder, verify=True)
    return TensorReader(folder, [entry for entry in manifest.files if entry.role == role]).read(tensor)


def apart(run: RunFolder, tensor: str) -> float:
    """How far two trainers' tensors are apart, over their size."""
    first, second = (saved(run, f"trainer-{index}", tensor) for index in range(2))
    return float(np.linalg.norm(first - second) / np.linalg.norm(first))


@pytest.mark.parametrize(
    ("optimizer", "names"),
    [("adagrad", ["sum"]), pytest.param("adam", ["exp_avg", "exp_avg_sq"], marks=pytest.mark.matrix)],
)
def test_a_closing_round_makes_states_equal(cluster: ClusterMaker, optimizer: str, names: list[str]) -> None:
    sync: dict[str, Any] = {"algorithm": "ma", "nodes": 0, "options": {"elastic_rate": 1.0}}
    runs = {}
    for state in ("own", "synchronized"):
        settings = {
            "run": {"name": state},
            "trainer": {"optimizer": optimizer},
            "sync": {**sync, "optimizer_state": state},
        }
        run = runs[state] = finished(cluster, settings)
        assert run.report.sync.optimizer_state == state
        assert apart(run, "replica") == 0
    for name in names:
        assert apart(runs["synchronized"], f"optimizer.{name}") == 0
        assert apart(runs["own"], f"optimizer.{name}") > 1e-3, "the control: each has its own"
        if name != "exp_avg":
            assert saved(runs["synchronized"], "trainer-0", f"optimizer.{name}").min() >= 0
    assert "with the optimizer's state" in (runs["synchronized"].folder / "report.md").read_text("utf-8")
    assert "with the optimizer's state" not in (runs["own"].folder / "report.md").read_text("utf-8")


@pytest.mark.matrix
def test_a_center_has_it_and_its_model_has_not(cluster: ClusterMaker) -> None:
    """Two sync nodes: the border between their slices is inside the weights, or the state."""
    settings: dict[str, Any] = {
        "data": {"epochs": 2},
        "checkpoint": {"every_examples": EXAMPLES // 2},
        "sync": {"nodes": 2, "optimizer_state": "synchronized"},
    }
    run = interrupted(cluster, settings, 120)
    weights = len(saved(run, "trainer-0", "replica"))
    center = np.concatenate([saved(run, f"sync-{index}", "center") for index in range(2)])
    assert len(center) == 2 * weights
    assert center[weights:].min() >= 0
    assert center[weights:].max() > 0, "it has seen gradients"
    report = finished(cluster, going_on(settings, run)).report
    assert report.restored_examples + report.examples.distinct == 2 * EXAMPLES
    assert present(report.checkpoints).failed == 0
    assert present(present(report.eval).auc) > 0.55
