"""What `shadowsync export` writes scores as the saved model does, in a process without shadowsync."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.saved_model.evaluate import batches_of, spans_of
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.processes import Starter
from shadowsync.tests.support.jobs.runs import Settings
from shadowsync.tests.support.outside.serve_export import ROWS

SERVER = Path(__file__).parents[2] / "support" / "outside" / "serve_export.py"
HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnxscript", "onnxruntime"))


@pytest.fixture(scope="module")
def logits(saved_run: Path, click_log: Path) -> NDArray[np.float32]:
    """Of the held-out file, by the saved model itself."""
    model = SavedModel.open(saved_run)
    spans = spans_of(model, [str(click_log / "eval-*.parquet")])
    return np.concatenate([model.logits(b) for b in batches_of(model, spans, BadRows(0))])[:ROWS]


def _serve(export: Path, log: Path, folder: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What the export scores, and what it would with the rows of its tables shuffled."""
    files = folder / "served.npy", folder / "shuffled.npy"
    # Isolated: not even the folder of this test is on its path.
    command = [sys.executable, "-I", str(SERVER), str(export), str(log), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return np.load(files[0]), np.load(files[1])


@pytest.mark.matrix
@pytest.mark.parametrize(("form", "tables"), [("torch-export", "parquet"), ("onnx", "safetensors")])
def test_the_export_scores_the_same(
    starter: Starter,
    saved_run: Path,
    click_log: Path,
    tmp_path: Path,
    logits: NDArray[np.float32],
    form: str,
    tables: str,
) -> None:
    if form == "onnx" and not HAS_ONNX:
        pytest.skip("needs onnxscript and onnxruntime")
    folder = tmp_path / "export"
    starter.ended("export", str(saved_run), "--format", form, "--tables", tables, "--out", str(folder))
    (log,) = click_log.glob("eval-*.parquet")
    served, shuffled = _serve(folder, log, tmp_path)
    np.testing.assert_allclose(served, logits, rtol=1e-5, atol=1e-5)
    assert np.abs(shuffled - logits).max() > 0.1, "the control"
    assert "exists already" in starter.ended("export", str(saved_run), "--out", str(folder), code=8)


COLUMNS = {
    "clicked": "label",
    "price": {"kind": "dense", "shift": 50.0, "scale": 10.0},
    "age": {"kind": "dense", "transform": "none", "shift": 40.0, "scale": 4.0},
    "person": {"kind": "categorical", "source": "user"},
    "tags": {"kind": "multi_hot", "pooling": "mean", "max_ids": 3},
    "first": {"kind": "categorical", "source": "tag", "table": "tags"},
    "dear": {"kind": "bucket", "source": "age", "boundaries": [18, 25, 35.5], "table": "years"},
    "words": {"kind": "multi_hot", "delimiter": " "},
    "ip": "ip",
    "years": {"kind": "bucket", "source": "age", "boundaries": [18, 25, 35.5]},
    "cost": {"kind": "bucket", "source": "price", "quantiles": 10},
    "person_by_years": {"kind": "cross", "columns": ["person", "years"]},
    "hour_by_cost": {"kind": "cross", "columns": ["hour", "cost", "person"]},
    "hour": {"kind": "categorical", "source": "at", "part": "hour", "format": "%d/%m/%Y %H:%M"},
    "weekday": {"kind": "categorical", "source": "at", "part": "weekday", "format": "%d/%m/%Y %H:%M"},
    "month": {"kind": "categorical", "source": "at", "part": "month", "format": "%d/%m/%Y %H:%M"},
}


ADDRESSES = ["192.0.2.7", "192.0.9.1", None, "2001:db8::7", "NA", "::ffff:192.0.2.9", "10.0.0.1"]


def write_log(path: Path) -> Path:
    """Rows with missing numbers and ids, empty bags, empty ids within bags, and bags that are too long."""
    rng = np.random.default_rng(1)
    bags = ["", "a||b", "||", "a|b", "c|d|e|a|b", "a|a", "NA", "a|NA|c", None]
    count = 4000
    columns = {
        "clicked": rng.integers(0, 2, count),
        "price": [None if at % 3 == 0 else float(at % 100) for at in range(count)],
        "age": [None if at % 4 == 0 else float(at % 80) for at in range(count)],
        "user": [None if at % 11 == 0 else f"u{at % 50}" for at in range(count)],
        "tags": [bags[at % len(bags)] for at in range(count)],
        "tag": [(None, "a", "b", "e", "NA")[at % 5] for at in range(count)],
        "at": [
            None if at % 9 == 0 else f"{1 + at % 28}/{1 + at % 12}/2025 {at % 24}:30" for at in range(count)
        ],
        "words": [("one two  three", "", "four")[at % 3] for at in range(count)],
        "ip": [ADDRESSES[at % len(ADDRESSES)] for at in range(count)],
    }
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.matrix
def test_every_kind_of_input_is_as_the_manifest_says(
    cluster: ClusterMaker, starter: Starter, tmp_path: Path
) -> None:
    log = write_log(tmp_path / "log.parquet")
    data = {"format": "parquet", "path": str(log), "eval_path": None, "columns": COLUMNS}
    changes: Settings = {
        "data": data | {"missing": ["", "NA"]},
        "embedding": {"lr": 0.2, "nodes": 1},
        "trainer": {"count": 1, "batch": 64},
    }
    run = finished(cluster, changes).folder
    starter.ended("export", str(run), "--out", str(tmp_path / "export"))
    model = SavedModel.open(run)
    batches = batches_of(model, spans_of(model, [str(log)]), BadRows(0))
    expected = np.concatenate([model.logits(batch) for batch in batches])[:ROWS]
    served, shuffled = _serve(tmp_path / "export", log, tmp_path)
    np.testing.assert_allclose(served, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(shuffled - expected).max() > 0.01, "the control"
    raw = model.predict(pq.read_table(log).slice(0, ROWS).drop_columns("clicked"))
    np.testing.assert_allclose(raw, 1 / (1 + np.exp(-expected)), rtol=1e-4, atol=1e-5)
    assert model.tables["month"].hash(12) == 11
    assert model.tables["first"].hash("a") == model.tables["tags"].hash("a")
    manifest = json.loads((tmp_path / "export" / "manifest.json").read_text("utf-8"))
    file_of = {entry["name"]: entry["file"] for entry in manifest["tables"]}
    assert (file_of["first"], file_of["dear"]) == (file_of["tags"], file_of["years"])
    assert len(set(file_of.values())) == len(file_of) - 2
    assert len(model.tables["cost"].boundaries) == 9
    assert [model.tables["years"].hash(value) for value in (17.9, 18, 40, None)] == [0, 1, 3, 4]


def write_lists(path: Path) -> Path:
    """Rows with lists and their weights; some of both are empty, dropped, or beyond `max_ids`."""
    rng = np.random.default_rng(1)
    lists = [("", ""), ("a||b", "1||0.5"), ("c|d|e|a|b", "0|0|0|9|9"), ("a|a", "2|3"), (None, None)]
    count = 2000
    columns = {
        "clicked": rng.integers(0, 2, count),
        "age": [float(at % 80) for at in range(count)],
        "item": [f"i{at % 30}" for at in range(count)],
        "history": [lists[at % len(lists)][0] for at in range(count)],
        "scores": [lists[at % len(lists)][1] for at in range(count)],
    }
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("form", "growing"),
    # Each is of a growing table in one of them, and of a hashed one in the other.
    [("torch-export", ("history", "means")), ("onnx", ("sums", "plain", "item"))],
)
def test_lists_are_as_the_manifest_says(
    cluster: ClusterMaker, starter: Starter, tmp_path: Path, form: str, growing: tuple[str, ...]
) -> None:
    """A sequence that din attends to, sums and means, with weights and without.

    The growing tables among them have fewer rows than ids; the others are hashed.
    """
    if form == "onnx" and not HAS_ONNX:
        pytest.skip("needs onnxscript and onnxruntime")
    log = write_lists(tmp_path / "log.parquet")
    shared = {"kind": "multi_hot", "source": "history", "max_ids": 3}
    columns = {
        "clicked": "label",
        "age": "dense",
        "sums": {**shared, "weights": "scores"},
        "history": {**shared, "pooling": "none", "keep": "last"},
        "means": {**shared, "weights": "scores", "pooling": "mean", "keep": "last"},
        "plain": {**shared, "pooling": "mean"},
        "item": "categorical",
    }
    tables: Settings = {name: {"kind": "growing", "rows": 3, "evict": "never"} for name in growing}
    changes: Settings = {
        "data": {"format": "parquet", "path": str(log), "eval_path": None, "columns": columns},
        "model": {
            "name": "din",
            "attention": {"history": "item"},
            "bottom": None,
            "options": {"positions": True},
        },
        "embedding": {"lr": 0.2, "nodes": 1},
        "trainer": {"count": 1, "batch": 64},
        **({"tables": tables} if growing else {}),
    }
    run = finished(cluster, changes)
    assert [table.rows for table in run.report.growing_tables] == [3] * len(growing)
    export = tmp_path / "export"
    starter.ended("export", str(run.folder), "--format", form, "--out", str(export))
    model = SavedModel.open(run.folder)
    batches = batches_of(model, spans_of(model, [str(log)]), BadRows(0))
    expected = np.concatenate([model.logits(batch) for batch in batches])[:ROWS]
    served, shuffled = _serve(export, log, tmp_path)
    np.testing.assert_allclose(served, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(shuffled - expected).max() > 0.01, "the control"
    raw = model.predict(pq.read_table(log).slice(0, ROWS).drop_columns("clicked"))
    np.testing.assert_allclose(raw, 1 / (1 + np.exp(-expected)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("harm", ["truncated", "altered", "manifest", "missing"])
def test_a_harmed_checkpoint_is_told_and_nothing_is_written(
    starter: Starter, saved_run: Path, tmp_path: Path, harm: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(saved_run / "checkpoint", run / "checkpoint")
    victim = next((run / "checkpoint").glob("dense-*.safetensors"))
    data = victim.read_bytes()
    if harm == "truncated":
        victim.write_bytes(data[:-100])
    elif harm == "altered":
        victim.write_bytes(data[:-100] + bytes(100))
    elif harm == "manifest":
        manifest = run / "checkpoint" / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"seed": 1', '"seed": 2'))
    else:
        victim.unlink()
    text = starter.ended("export", str(run), "--out", str(tmp_path / "export"), code=3)
    (line,) = text.strip().splitlines()
    words = {"truncated": "bytes", "altered": "altered", "manifest": "altered", "missing": "missing"}
    assert words[harm] in line
    assert str(run) in line
    assert [path.name for path in tmp_path.iterdir() if "export" in path.name and path.is_dir()] == []
