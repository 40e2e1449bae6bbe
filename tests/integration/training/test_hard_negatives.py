"""Hard negatives in whole jobs: what they are for, and files without them where nothing trains."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.prepare.preparation import prepare_folder
from shadowsync.pipeline.retrieval.items_export import export_items
from shadowsync.pipeline.retrieval.searched_items import ItemFiles
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished, shared_run
from shadowsync.tests.support.jobs.processes import Starter
from shadowsync.tests.support.jobs.runs import RunFolder, Settings, small_job, write_job
from shadowsync.tests.support.outside.serve_export import ROWS as ROWS_SERVED

SERVER = Path(__file__).parents[2] / "support" / "outside" / "serve_export.py"
USERS, KINDS, PLACES, ROWS, BATCH = 40, 5, 12, 8000, 64
# Vectors that nothing trained are at random angles: in few dimensions some are as far off as any can be.
DIM = 32
MODELS: dict[str, dict[str, Any]] = {
    "two_tower": {"query": ["user", "age"], "options": {"dim": DIM, "temperature": 0.2}},
    "sequence": {"query": ["before", "user", "age"], "options": {"temperature": 0.2, "blocks": 1}},
}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users take items of their own kind with an even place, and pass over some with an odd one.

    Nobody takes an odd one, so nothing but what is passed over says anything of them: they are in no batch.
    """
    path, generator = tmp_path_factory.mktemp("skipped") / "log.parquet", np.random.default_rng(1)
    users = generator.integers(0, USERS, ROWS)
    places = 2 * generator.integers(0, PLACES // 2, ROWS)
    passed = 2 * generator.integers(0, PLACES // 2, (ROWS, 3)) + 1
    counts = generator.integers(0, 4, ROWS)
    columns = {
        "user": [f"u{user}" for user in users],
        "age": (users % 3).astype(float),
        "item": [_item(user, place) for user, place in zip(users, places, strict=True)],
        "before": [_item(user, (place + 2) % PLACES) for user, place in zip(users, places, strict=True)],
        # The item itself is among them now and then.
        "skipped": [
            "|".join(_item(user, at) for at in [*odd[:count], *([place] if count == 2 else [])])
            for user, place, odd, count in zip(users, places, passed, counts, strict=True)
        ],
    }
    whole = pa.table(columns)
    for name, table in (("log", whole), ("plain", whole.drop(["skipped"]).slice(0, 1000))):
        pq.write_table(table, path.with_name(f"{name}.parquet"))
        unquoted = pcsv.WriteOptions(quoting_style="none")
        pcsv.write_csv(table, path.with_name(f"{name}.csv"), unquoted)
    items = [_item(kind, place) for kind in range(KINDS) for place in range(PLACES)]
    pq.write_table(pa.table({"item": items}), path.with_name("items.parquet"))
    return path


def _item(user: int, place: int) -> str:
    return f"i{KINDS * place + user % KINDS}"


def settings_of(log: Path, name: str, *, negatives: bool = True, epochs: int = 2, **trainer: Any) -> Settings:
    lists = {"kind": "multi_hot", "table": "item", "pooling": "none"}
    columns: dict[str, Any] = {"user": "categorical", "age": "dense", "item": "categorical"}
    columns["before"] = lists | {"keep": "last"} if name == "sequence" else "ignored"
    columns["skipped"] = lists if negatives else "ignored"
    model = {
        "name": name,
        "bottom": None,
        "output_bias": None,
        "item": ["item"],
        "embedding_dim": DIM,
        **({"negatives": "skipped"} if negatives else {}),
    }
    return {
        "data": {
            "format": "parquet",
            "path": str(log),
            "eval_path": str(log.with_name("plain.parquet")),
            "shuffle_window": 1024,
            "epochs": epochs,
            "columns": columns,
        },
        "model": model | MODELS[name],
        "trainer": {"count": 1, "batch": BATCH, "lr": 0.05} | trainer,
        "embedding": {"lr": 0.1},
    }


def passed_over(run: RunFolder) -> float:
    """The mean share of items that nobody saw that score below one that was passed over, of a user's kind."""
    places = [*range(1, PLACES, 2), *range(PLACES, 10 * PLACES)]
    rows = [
        {"user": f"u{user}", "age": user % 3, "item": _item(user, place), "before": _item(user, 2)}
        for user in range(USERS)
        for place in places
    ]
    scores = SavedModel.open(run.folder).predict(rows).reshape(USERS, len(places))
    seen, unseen = scores[:, : PLACES // 2, None], scores[:, None, PLACES // 2 :]
    return float((unseen < seen).mean())


@pytest.fixture(scope="module")
def passed_over_without(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], float]:
    """The control of a model: the column is ignored."""

    @functools.cache
    def found(name: str) -> float:
        return passed_over(
            shared_run(tmp_path_factory.mktemp(name), log, settings_of(log, name, negatives=False, epochs=4))
        )

    return found


@pytest.mark.parametrize(
    ("name", "trainer"),
    [
        ("two_tower", {"count": 2, "workers": 2}),
        ("sequence", {"workers": 2}),
        pytest.param("two_tower", {"precision": "bfloat16", "clip_norm": 1.0}, marks=pytest.mark.matrix),
        pytest.param("two_tower", {"exact_rows": False}, marks=pytest.mark.matrix),
    ],
)
def test_what_was_passed_over_scores_below(
    cluster: ClusterMaker,
    log: Path,
    passed_over_without: Callable[[str], float],
    name: str,
    trainer: dict[str, Any],
) -> None:
    """A test file without the column is scored. Without it in training they are as items that nobody saw."""
    settings = settings_of(log, name, epochs=4, **trainer)
    if trainer.get("count") == 2:
        settings = {**settings, "sync": {"algorithm": "bmuf", "nodes": None}}
    run = finished(cluster, settings)
    assert run.report.examples.distinct == 4 * ROWS
    assert passed_over(run) < 0.25
    assert 0.35 < passed_over_without(name) < 0.65, "the control"


def test_each_way_to_score_does_without_them(
    cluster: ClusterMaker, starter: Starter, log: Path, tmp_path: Path
) -> None:
    run = finished(cluster, settings_of(log, "two_tower", epochs=1))
    model = SavedModel.open(run.folder)
    rows = pq.read_table(log).slice(0, ROWS_SERVED)
    bare = rows.drop(["skipped"])
    expected = model.predict(bare)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(model.predict(rows), expected)
    files = {"with": rows, "without": bare}
    scores = {}
    for name, table in files.items():
        data, out = tmp_path / f"{name}.parquet", tmp_path / f"{name}_scores.parquet"
        pq.write_table(table, data)
        starter.ended("predict", str(run.folder), "--data", str(data), "--out", str(out))
        scores[name] = pq.read_table(out)["score"].to_numpy()
        starter.ended("eval", str(run.folder), "--data", str(data))
    np.testing.assert_array_equal(scores["with"], scores["without"])
    np.testing.assert_allclose(scores["without"], expected, rtol=1e-6)
    export = tmp_path / "export"
    starter.ended("export", str(run.folder), "--out", str(export))
    served = tmp_path / "served.npy", tmp_path / "shuffled.npy"
    command = [
        *(sys.executable, "-I", str(SERVER), str(export), str(tmp_path / "without.parquet")),
        *map(str, served),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(served[0]), expected, rtol=1e-4, atol=1e-5)
    items = tmp_path / "items"
    export_items(model, ItemFiles([str(log.with_name("items.parquet"))], "exact"), items)
    assert pq.read_table(items / "items.parquet").num_rows == KINDS * PLACES


def test_a_file_to_train_on_has_the_column(cluster: ClusterMaker, log: Path) -> None:
    settings = settings_of(log, "two_tower")
    data = dict(settings["data"]) | {"path": str(log.with_name("plain.parquet")), "eval_path": None}
    own = cluster({**settings, "data": data}).start()
    assert own.wait() != 0
    assert "no column 'skipped'" in own.coordinator.text()


def test_a_text_file_has_them(cluster: ClusterMaker, log: Path) -> None:
    settings = settings_of(log, "two_tower")
    paths = {"path": str(log.with_suffix(".csv")), "eval_path": str(log.with_name("plain.csv"))}
    run = finished(cluster, {**settings, "data": dict(settings["data"]) | paths | {"format": "csv"}})
    assert run.report.examples.distinct == 2 * ROWS
    assert passed_over(run) < 0.25


def test_a_prepared_folder_has_them(cluster: ClusterMaker, log: Path, tmp_path: Path) -> None:
    settings = settings_of(log, "two_tower")
    job = write_job(tmp_path / "job.toml", small_job(log, tmp_path / "runs"), settings)
    prepare_folder(load_job(job), tmp_path / "prepared")
    prepared = dict(settings["data"]) | {"prepared": str(tmp_path / "prepared")}
    run = finished(cluster, {**settings, "data": prepared})
    assert run.report.examples.distinct == 2 * ROWS
    assert passed_over(run) < 0.1
