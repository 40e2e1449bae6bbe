"""Schedules, clipping, decay, precision, sample weights and models in whole jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.nodes.trainer import worker_pool
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.evaluate_run import evaluate_run
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.node_faults import fake_device
from shadowsync.tests.support.jobs.processes import Starter
from shadowsync.tests.support.jobs.runs import EXAMPLES, JobMaker, RunFolder

ALONE: dict[str, Any] = {"sync": {"algorithm": "none"}}
LINEAR = """
import torch
from torch import nn

class Linear(nn.Module):
    '''The control: no two inputs meet.'''
    def __init__(self, dense_features, embedding_dims):
        super().__init__()
        self.all = nn.Linear(dense_features + sum(embedding_dims), 1)
    def forward(self, dense, embeddings):
        return self.all(torch.cat([dense, *embeddings], dim=1)).squeeze(1)
"""


def _run(cluster: ClusterMaker, name: str, **changes: Any) -> RunFolder:
    """A deterministic job: what its scores are does not hang on who is faster."""
    trainer = {"count": 1, "batch": 256} | changes.pop("trainer", {})
    settings = ALONE | {"run": {"deterministic": True, "name": name}, "trainer": trainer} | changes
    return finished(cluster, settings)


def _replica(run: RunFolder) -> np.ndarray[Any, np.dtype[np.float32]]:
    folder, manifest = open_checkpoint(run.folder)
    entries = [entry for entry in manifest.files if entry.role == "trainer-0"]
    return np.array(TensorReader(folder, entries).read("replica"))


RECIPE = {
    "optimizer": "adamw",
    "weight_decay": 0.01,
    "clip_norm": 0.05,
    "schedule": {"kind": "cosine", "warmup_examples": 4000, "decay_examples": EXAMPLES, "final": 0.1},
}


@pytest.mark.matrix
def test_a_recipe_repeats_to_the_bit_and_each_part_of_it_counts(cluster: ClusterMaker) -> None:
    first = _run(cluster, "first", trainer=RECIPE)
    again = _run(cluster, "again", trainer=RECIPE)
    assert np.array_equal(_replica(first), _replica(again))
    for part in ("weight_decay", "clip_norm", "schedule"):
        without = {key: value for key, value in RECIPE.items() if key != part}
        other = _run(cluster, f"without-{part}", trainer=without)
        assert not np.array_equal(_replica(first), _replica(other)), part
    assert first.ne < 0.99


@pytest.mark.matrix
def test_bfloat16_trains_as_float32_does(cluster: ClusterMaker) -> None:
    exact = _run(cluster, "exact")
    near = _run(cluster, "near", trainer={"precision": "bfloat16"})
    still = _run(cluster, "still", trainer={"lr": 1e-9}, embedding={"lr": 1e-9})
    assert not np.array_equal(_replica(exact), _replica(near))
    assert _replica(near).dtype == np.float32
    # The control is a job that learns nothing.
    assert abs(near.ne - exact.ne) < 0.1 * (still.ne - exact.ne)


@pytest.fixture
def crossed_log(tmp_path: Path) -> Path:
    """12,000 examples whose label hangs on whether two of three ids are alike in parity, which no single id
    tells. Those of one value of the third id weigh more, and have the rule turned round."""
    generator = np.random.default_rng(7)
    count = 12_000
    ids = generator.integers(0, 20, (3, count))
    turned = ids[2] == 3
    score = np.where((ids[0] + ids[1] + turned) % 2 == 0, 1.5, -1.5)
    labels = (generator.random(count) < 1 / (1 + np.exp(-score))).astype(np.int8)
    weights = np.where(turned, 5.0, 1.0)
    table = {"y": labels, "x": generator.normal(0, 1, count), "w": weights}
    columns = {name: pa.array(values) for name, values in table.items()}
    columns |= {f"id{at}": pa.array(own.astype(str)) for at, own in enumerate(ids)}
    folder = tmp_path / "crossed"
    folder.mkdir()
    whole = pa.table(columns)
    pq.write_table(whole.slice(0, 10_000), folder / "train.parquet")
    pq.write_table(whole.slice(10_000), folder / "eval.parquet")
    return folder


def _crossed(log: Path, *, weight: str = "ignored", epochs: int = 1) -> dict[str, Any]:
    kinds = {"y": "label", "x": "dense", "w": weight, "id0": "categorical", "id1": "categorical"}
    return {
        "path": str(log / "train.parquet"),
        "eval_path": str(log / "eval.parquet"),
        "columns": kinds | {"id2": "categorical"},
        "epochs": epochs,
        "shuffle_window": 0,
        "dense_features": None,
        "categorical_features": None,
    }


@pytest.mark.matrix
def test_models_with_tables_of_their_own_dimensions_beat_a_linear_one(
    cluster: ClusterMaker, crossed_log: Path, tmp_path: Path
) -> None:
    (tmp_path / "linear.py").write_text(LINEAR, encoding="utf-8")
    data = _crossed(crossed_log, epochs=4)
    trainer = {"batch": 64, "optimizer": "adam", "lr": 0.01}
    small = {"embedding_dim": 4, "table_rows": 64, "bottom": [16], "top": [32]}
    embedding = {"lr": 0.1}

    def score(name: str, model: dict[str, Any]) -> float:
        run = _run(
            cluster,
            name,
            data=data,
            trainer=trainer,
            model=small | model,
            embedding=embedding,
            **{"tables.id1": {"dim": 6}},
        )
        return run.ne

    control = score("linear", {"name": "./linear.py:Linear"})
    assert control > 0.97
    for name, options in (
        ("wide_deep", {}),
        ("dcn_v2", {"cross_layers": 2}),
        ("dlrm", {"project": True}),
        ("finalmlp", {"heads": 2}),
        ("ple", {}),
    ):
        assert score(name, {"name": name, "options": options}) < control - 0.05, name


@pytest.mark.matrix
def test_a_cross_lets_a_linear_model_see_a_combination(
    cluster: ClusterMaker, crossed_log: Path, tmp_path: Path
) -> None:
    (tmp_path / "linear.py").write_text(LINEAR, encoding="utf-8")
    settings: dict[str, Any] = {
        "model": {"name": "./linear.py:Linear", "embedding_dim": 4, "table_rows": 20_000},
        "trainer": {"batch": 64, "optimizer": "adam", "lr": 0.01},
        "embedding": {"lr": 0.1},
    }
    data = _crossed(crossed_log, epochs=2)
    assert _run(cluster, "linear", data=data, **settings).ne > 0.97, "the control"
    data["columns"]["pair"] = {"kind": "cross", "columns": ["id0", "id1"]}
    assert _run(cluster, "crossed", data=data, **settings).ne < 0.9


def test_sample_weights_are_in_the_loss_and_in_every_figure(cluster: ClusterMaker, crossed_log: Path) -> None:
    settings: dict[str, Any] = {
        "model": {"name": "dcn_v2", "embedding_dim": 4, "table_rows": 64, "top": [32]},
        "trainer": {"batch": 64, "optimizer": "adam", "lr": 0.01},
    }
    plain = _run(cluster, "plain", data=_crossed(crossed_log), **settings)
    weighted = _run(cluster, "weighted", data=_crossed(crossed_log, weight="weight"), **settings)
    assert not np.array_equal(_replica(plain), _replica(weighted))
    assert plain.report.examples.distinct == weighted.report.examples.distinct == 10_000
    assert weighted.ne != plain.ne
    assert 0.5 < present(weighted.report.train.ne_progressive) < 1.1
    # Scored once more from the files, where no trainer is.
    again = evaluate_run(weighted.folder, [str(crossed_log / "eval.parquet")])
    assert again["ne"] == pytest.approx(weighted.ne, abs=1e-5)


def test_a_device_that_is_not_there(starter: Starter, job_file: JobMaker) -> None:
    text = starter.ended("run", str(job_file({"trainer": {"device": "cuda:99"}})), code=2)
    (line,) = text.strip().splitlines()
    assert "trainer.device: 'cuda:99' given; this machine has: cpu" in line
    assert not (job_file().parent / "runs").exists(), "nothing was started"


def test_each_trainer_may_have_a_device_of_its_own(cluster: ClusterMaker) -> None:
    """What the job file says is for those that are not told otherwise, and nobody has to agree on it."""
    own = cluster({"trainer": {"device": "cuda:99"}})
    own.start_coordinator()
    for role in ("reader", "embedding", "sync"):
        own.join(role)
    refused = own.join("trainer")
    assert refused.wait(60.0) == 2
    assert "trainer.device: 'cuda:99' given" in refused.text()
    own.nodes["trainer"].remove(refused)
    own.join("trainer", "trainer.device=cpu")
    own.join("trainer", "trainer.device=cpu")
    own.ended(distinct=EXAMPLES)


@pytest.mark.matrix
@pytest.mark.parametrize("mode", ["shadow", "fixed"])
def test_a_job_over_a_device_that_runs_ahead(cluster: ClusterMaker, mode: str) -> None:
    """One trainer launches steps ahead and has its copies late, the other is on the CPU; the ledger agree."""
    sync = {"algorithm": "easgd", "mode": mode, "every": 5}
    run = finished(cluster, {"sync": sync}, faults=(fake_device,))
    report = run.report
    assert run.logged("a step was launched ahead", ["trainer-0", "trainer-1"])
    assert report.examples.distinct == report.examples.trained == EXAMPLES
    assert report.sync.rounds
    # Not NE: how far the center is when so short a job ends depends on how busy the machine was.
    assert present(run.evaluation.auc) > 0.55, "0.5 is what chance gives, to within 0.01"


def test_a_trainer_near_its_gpu_says_on_which_cores_it_stays(cluster: ClusterMaker) -> None:
    stayed: list[frozenset[int]] = []

    def on_one_of_two_sockets(patch: pytest.MonkeyPatch) -> None:
        fake_device(patch)
        patch.setattr(worker_pool, "nearest_cores", lambda _: frozenset({4, 5}))
        patch.setattr(worker_pool, "stay_on", stayed.append)

    run = finished(cluster, ALONE | {"trainer": {"count": 1}}, faults=(on_one_of_two_sockets,))
    assert stayed == [{4, 5}]
    (event,) = run.report.events
    assert (event.node, event.what) == (
        "trainer-0",
        "it stays on the 2 cores that are nearest to its GPU, cpu",
    )
