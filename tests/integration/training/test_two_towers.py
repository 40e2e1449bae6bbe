"""Two towers in a whole job: without a label, stopped and gone on with, scored, and exported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.processes import Starter
from shadowsync.tests.support.jobs.resumed import going_on, interrupted
from shadowsync.tests.support.jobs.runs import RunFolder, Settings
from shadowsync.tests.support.outside.serve_export import ROWS as ROWS_SERVED

SERVER = Path(__file__).parents[2] / "support" / "outside" / "serve_export.py"
USERS, ITEMS, ROWS, BATCH = 40, 60, 8000, 64


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Who took what: a user takes items of its own kind, of five; the first ones of them most often."""
    path, generator = tmp_path_factory.mktemp("pairs") / "log.parquet", np.random.default_rng(1)
    users = generator.integers(0, USERS, ROWS)
    places = np.minimum(generator.geometric(0.2, ROWS) - 1, ITEMS // 5 - 1)
    pairs = list(zip(users.tolist(), places.tolist(), strict=True))
    columns = {
        "user": [f"u{user}" for user, _ in pairs],
        "item": [f"i{5 * place + user % 5}" for user, place in pairs],
        "age": [float(user % 3) for user, _ in pairs],
        "tags": [f"{place % 4}|{user % 5}" for user, place in pairs],
    }
    pq.write_table(pa.table(columns), path)
    return path


def settings_of(log: Path, kind: str = "growing", **trainer: Any) -> Settings:
    return {
        "data": {
            "format": "parquet",
            "path": str(log),
            "eval_path": None,
            "shuffle_window": 1024,
            "columns": {"user": "categorical", "item": "categorical", "age": "dense", "tags": "multi_hot"},
        },
        "model": {
            "name": "two_tower",
            "bottom": None,
            "output_bias": None,
            "query": ["user", "age"],
            "item": ["item", "tags"],
            "table_kind": kind,
            "options": {"dim": 8, "temperature": 0.2},
        },
        "trainer": {"count": 1, "batch": BATCH, "lr": 0.05} | trainer,
        "embedding": {"lr": 0.1},
    }


def own_kind_rank(model: SavedModel) -> float:
    """The mean share of the items of another kind that score better than a user's own kind does."""
    rows = [
        {"user": f"u{user}", "item": f"i{5 * place + kind}", "age": user % 3, "tags": f"{place % 4}|{kind}"}
        for user in range(USERS)
        for kind in range(5)
        for place in range(6)
    ]
    scores = model.predict(rows).reshape(USERS, 5, 6)
    own = np.arange(USERS) % 5
    better = [
        (np.delete(scores[user], own[user], axis=0)[..., None] > scores[user, own[user]]).mean()
        for user in range(USERS)
    ]
    return float(np.mean(better))


@pytest.mark.parametrize(
    ("kind", "trainer"),
    [
        ("growing", {"count": 2, "workers": 2}),
        pytest.param("hashed", {"precision": "bfloat16", "clip_norm": 1.0}, marks=pytest.mark.matrix),
    ],
)
def test_items_of_a_users_kind_are_the_nearest(
    cluster: ClusterMaker, log: Path, kind: str, trainer: dict[str, Any]
) -> None:
    settings = settings_of(log, kind, **trainer)
    if trainer.get("count") == 2:
        settings = {**settings, "sync": {"algorithm": "bmuf", "nodes": None}}
    run = finished(cluster, settings)
    assert run.report.examples.distinct == ROWS
    assert own_kind_rank(SavedModel.open(run.folder)) < 0.1
    assert "nothing can be learned" not in (run.folder / "report.md").read_text()


def test_a_run_that_learns_nothing_has_them_anywhere(cluster: ClusterMaker, log: Path) -> None:
    """The control."""
    settings = {**settings_of(log, lr=1e-6), "embedding": {"lr": 1e-6}}
    assert 0.3 < own_kind_rank(SavedModel.open(finished(cluster, settings).folder)) < 0.7


def frequencies(run: RunFolder) -> dict[str, Any]:
    folder, manifest = open_checkpoint(run.folder / "checkpoint", verify=True)
    reader = TensorReader(folder, [entry for entry in manifest.files if entry.role == "trainer-0"])
    return {name: reader.read(name) for name in reader.names if name.startswith("items.")}


def test_a_run_that_goes_on_has_counted_the_items_before(cluster: ClusterMaker, log: Path) -> None:
    settings: Settings = {**settings_of(log)}
    settings = {**settings, "data": {**settings["data"], "epochs": 2}}
    first = interrupted(cluster, settings, 60)
    before = frequencies(first)
    assert int(before["items.examples"][0]) >= 60 * BATCH
    second = finished(cluster, going_on(settings, first))
    after = frequencies(second)
    assert int(after["items.examples"][0]) == 2 * ROWS
    alone = frequencies(finished(cluster, settings_of(log)))
    assert int(alone["items.examples"][0]) == ROWS, "the control"
    none: Settings = {**settings, "model": {**settings["model"], "options": {"frequency_rate": 0}}}
    assert frequencies(finished(cluster, none)) == {}


def test_each_way_to_score_gives_the_same_scores(
    cluster: ClusterMaker, starter: Starter, log: Path, tmp_path: Path
) -> None:
    run = finished(cluster, settings_of(log))
    rows = pq.read_table(log).slice(0, ROWS_SERVED)
    expected = SavedModel.open(run.folder).predict(rows)
    assert np.isfinite(expected).all()
    assert expected.max() > 1, "similarities, no probabilities"
    some = tmp_path / "some.parquet"
    pq.write_table(rows, some)
    scores = tmp_path / "scores.parquet"
    starter.ended("predict", str(run.folder), "--data", str(some), "--out", str(scores))
    written = pq.read_table(scores)
    assert "probability" not in written.column_names
    np.testing.assert_allclose(written["score"].to_numpy(), expected, rtol=1e-6)
    export = tmp_path / "export"
    starter.ended("export", str(run.folder), "--out", str(export))
    files = tmp_path / "served.npy", tmp_path / "shuffled.npy"
    command = [sys.executable, "-I", str(SERVER), str(export), str(some), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(files[0]), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(np.load(files[1]) - expected).max() > 0.1, "the control"
