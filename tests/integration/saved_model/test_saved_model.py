"""`SavedModel`: the model that a run saved, opened without a cluster; and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.pipeline.checkpoint.manifest import CheckpointManifest, commit
from shadowsync.pipeline.embedding.storage import loaded_tables
from shadowsync.pipeline.errors import CheckpointError
from shadowsync.pipeline.report.run_folders.write import read_report
from shadowsync.pipeline.saved_model.evaluate import score_spans, spans_of
from shadowsync.pipeline.saved_model.model import SavedModel, load
from shadowsync.pipeline.saved_model.table import Table
from shadowsync.tests.support.jobs.evaluate_run import evaluate_run

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def model(saved_run: Path) -> SavedModel:
    """The model of the run."""
    return load(saved_run)


def test_it_scores_as_the_job_did(model: SavedModel, saved_run: Path, click_log: Path) -> None:
    """The quality of the whole cluster's evaluation, from its report, to the last digits."""
    report = read_report(saved_run / "report.json")
    assert report.eval is not None
    pattern = str(click_log / "eval-*.parquet")
    scores = score_spans(model, spans_of(model, [pattern]))
    assert scores.sums.examples == report.eval.examples
    assert scores.bad_rows == 0
    assert scores.sums.ne == pytest.approx(report.eval.ne, rel=1e-6)
    assert evaluate_run(saved_run, [pattern])["auc"] == pytest.approx(report.eval.auc, rel=1e-6)


def test_a_table_finds_rows_as_the_readers_do(model: SavedModel) -> None:
    """Against the embeddings of a batch that the readers cut, for ids that are known from the file."""
    table = model.tables["C2"]
    assert (table.rows, table.dim, table.pooling) == (2000, 8, "")
    assert table.hash("05db9164") == table.hash(b"05db9164") != table.hash("05db9165")
    assert table.hash(None) == table.hash("")
    assert table.hash(7) == table.hash("7"), "the run read texts"
    of_integers = Table("C2", table.weights, "", integers_as_text=False)
    assert of_integers.hash(7) != of_integers.hash("7") == table.hash("7")
    found = table.lookup_ids(["05db9164", None])
    assert torch.equal(found, table.lookup([table.hash("05db9164"), table.hash("")]))
    assert model.tables["C1"].hash("05db9164") != table.hash("05db9164")
    assert table.lookup(np.zeros((2, 3), np.int64)).shape == (2, 3, 8)
    for wrong, error in ((2000, IndexError), (-1, IndexError), (0.5, TypeError)):
        with pytest.raises(error):
            table.lookup([wrong])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="text, bytes, an integer or None"):
        table.hash(1.5)
    with pytest.raises(ValueError, match="read-only"):
        table.weights[0] = 0.0


def _saved_as(saved_run: Path, folder: Path, change: Change) -> Path:
    """A copy of the run's checkpoint whose manifest has another job, as if that job had written the files."""
    partial = folder / "checkpoint.partial-0"
    shutil.copytree(saved_run / "checkpoint", partial)
    tree = json.loads((partial / "manifest.json").read_text("utf-8"))
    del tree["sha256"]
    change(tree["job"])
    commit(partial, CheckpointManifest.model_validate(tree))
    return folder


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("model", "bottom", [33], r"bottom\.0\.\w+ has shape \[32.* but \[33.* in the model"),
        ("model", "top", [32, 32], r"belongs to another model: it has no top\.4"),
        ("model", "bottom", [], r"belongs to another model: the model has no bottom\.2"),
        ("model", "table_rows", 2001, "table C1 has 2,000 rows in the checkpoint and 2,001 in the job"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(
    saved_run: Path, tmp_path: Path, section: str, key: str, value: object, words: str
) -> None:
    def change(job: dict[str, Any]) -> None:
        job[section][key] = value

    run = _saved_as(saved_run, tmp_path, change)
    with pytest.raises(CheckpointError, match=words):
        SavedModel.open(run)


def test_the_copy_itself_is_good(saved_run: Path, tmp_path: Path, model: SavedModel) -> None:
    """The control of the test above."""
    copied = SavedModel.open(_saved_as(saved_run, tmp_path, lambda _: None))
    assert torch.equal(copied.tables["C1"].lookup([5]), model.tables["C1"].lookup([5]))


def test_tables_that_do_not_fit_into_memory(
    saved_run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loaded_tables, "available_memory_bytes", lambda: 26 * 2000 * 8 * 4 - 1)
    mapped = SavedModel.open(saved_run)
    assert (
        "the tables need 1.66 MB of memory, and 1.66 MB may be used: they are read from a file" in caplog.text
    )
    caplog.clear()
    monkeypatch.setattr(loaded_tables, "available_memory_bytes", lambda: 26 * 2000 * 8 * 4)
    whole = SavedModel.open(saved_run)
    assert not caplog.records
    np.testing.assert_array_equal(mapped.tables["C1"].weights, whole.tables["C1"].weights)


def test_there_is_no_best_without_validation(saved_run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no best checkpoint was kept"):
        SavedModel.open(saved_run, "best")
    with pytest.raises(CheckpointError, match="there is no such folder"):
        SavedModel.open(tmp_path / "none")
