"""Models of one's own with frozen parameters and buffers that training does not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import shadowsync
import torch
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.tests.support.jobs.evaluate_run import evaluate_run
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.resumed import going_on
from shadowsync.tests.support.jobs.runs import RunFolder

# Some 40 batches, where it says nothing how many there are.
ALONE = {"count": 1, "batch": 512}
MODEL = """
import numpy as np
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, dense_features, embedding_dims, frozen=True, drawn=False):
        super().__init__()
        width = dense_features + sum(embedding_dims)
        self.fixed = nn.Linear(width, 8)
        if frozen:
            with torch.no_grad():
                self.fixed.weight.fill_(0.05)
                self.fixed.bias.fill_(0.25)
            self.fixed.requires_grad_(False)
        # Drawn of the machine's entropy, so that no two processes have the same.
        table = np.random.default_rng().normal(size=width) if drawn else np.full(width, 0.7)
        self.register_buffer("places", torch.tensor(table, dtype=torch.float32))
        self.register_buffer("scale", torch.full((1,), 0.5), persistent=False)
        self.head = nn.Linear(width + 8, 1)

    def forward(self, dense, embeddings):
        x = torch.cat([dense, *embeddings], 1) * self.places * self.scale
        return self.head(torch.cat([x, torch.tanh(self.fixed(x))], 1)).squeeze(1)
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "constant_model.py"
    file.write_text(MODEL, encoding="utf-8")
    return f"{file}:Model"


def settings(model: str, **changes: Any) -> dict[str, Any]:
    trainer = {"optimizer": "adamw", "weight_decay": 0.3, "lr": 0.01} | changes.pop("trainer", {})
    options = changes.pop("options", {})
    return {
        "model": {"name": model, "options": options, "embedding_dim": 4, "bottom": None, "top": None},
        "trainer": trainer,
    } | changes


def opened(run: RunFolder) -> SavedModel:
    return shadowsync.load(run.folder)


@pytest.mark.parametrize(
    "sync",
    [
        {"algorithm": "easgd", "nodes": 1},
        pytest.param({"algorithm": "bmuf", "mode": "fixed", "every": 3}, marks=pytest.mark.matrix),
        pytest.param({"algorithm": "ds_sync"}, marks=pytest.mark.matrix),
    ],
    ids=lambda sync: str(sync["algorithm"]),
)
def test_what_is_frozen_stays_to_the_bit(cluster: ClusterMaker, model: str, sync: dict[str, Any]) -> None:
    trainer = {"count": 3, "workers": 2}
    run = finished(cluster, settings(model, trainer=trainer, sync=sync))
    found = opened(run).dense
    assert (found.get_parameter("fixed.weight") == torch.tensor(0.05)).all()
    assert (found.get_parameter("fixed.bias") == 0.25).all()
    assert (found.get_buffer("places") == torch.tensor(0.7)).all()
    assert found.get_parameter("head.weight").abs().max() > 0.05, "the control: what is trained moved"
    if sync["algorithm"] != "ds_sync":
        # Under it the report has the mean of the replicas' scores, and the checkpoint one replica.
        again = evaluate_run(run.folder, cluster().job.data.eval_path)
        assert again["ne"] == pytest.approx(run.ne, abs=1e-5)


@pytest.mark.matrix
def test_what_a_process_draws_is_saved_with_the_model(cluster: ClusterMaker, model: str) -> None:
    """Each process draws its own; the control lacks it in the checkpoint's place."""
    drawn = settings(model, options={"drawn": True}, sync={"algorithm": "none"}, trainer=ALONE)
    run = finished(cluster, drawn)
    again = evaluate_run(run.folder, cluster().job.data.eval_path)
    assert again["ne"] == pytest.approx(run.ne, abs=1e-5)
    first, second = (opened(run).dense.get_buffer("places") for _ in range(2))
    assert first.equal(second)
    resumed = finished(cluster, going_on(drawn, run, {"run": {"name": "more"}, "data": {"epochs": 2}}))
    assert opened(resumed).dense.get_buffer("places").equal(first)
    fresh = finished(cluster, drawn | {"run": {"name": "another"}})
    assert not opened(fresh).dense.get_buffer("places").equal(first)


def test_trainers_that_draw_different_constants_are_refused(cluster: ClusterMaker, model: str) -> None:
    drawn = settings(model, options={"drawn": True}, sync={"algorithm": "ma"}, trainer={"count": 2})
    own = cluster(drawn).start()
    assert own.wait() != 0
    assert "first weights" in own.coordinator.text()
    assert own.run.batches() == 0


@pytest.mark.matrix
def test_a_warm_start_takes_what_is_frozen_now(cluster: ClusterMaker, model: str) -> None:
    """As for a fine tuning of the head: trained before, frozen now."""
    once = {"sync": {"algorithm": "none"}}
    before = finished(cluster, settings(model, options={"frozen": False}, trainer=ALONE, **once))
    trained = opened(before).dense.get_parameter("fixed.weight")
    assert not (trained == 0.05).any()
    start = {"start": {"checkpoint": str(before.folder)}, "run": {"name": "tuned"}}
    tuned = finished(cluster, settings(model, trainer=ALONE, **once, **start))
    assert opened(tuned).dense.get_parameter("fixed.weight").equal(trained)
    again = evaluate_run(tuned.folder, cluster().job.data.eval_path)
    assert again["ne"] == pytest.approx(tuned.ne, abs=1e-5)
