"""Whole jobs on lists: histories as sequences for DIN, and lists of ids with weights."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shadowsync.lab.virtual.job import run_virtual
from shadowsync.lab.virtual.timing import Timing
from shadowsync.pipeline.jobfile.load import job_of_tree, load_job
from shadowsync.pipeline.prepare.preparation import prepare_folder
from shadowsync.pipeline.saved_model.evaluate import evaluate_model
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.serving.rows import columns_of_request
from shadowsync.serving.scores import Scores, ServedModel
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.node_faults import fake_device, scored_on_a_thread
from shadowsync.tests.support.jobs.resumed import check_trained_once, going_on, interrupted
from shadowsync.tests.support.jobs.runs import JobMaker, RunFolder

ROWS, EVAL_ROWS, ITEMS = 12_000, 2_000, 12
HISTORY = {"kind": "multi_hot", "pooling": "none", "max_ids": 6}
COLUMNS: dict[str, Any] = {"clicked": "label", "item": "categorical", "history": HISTORY, "age": "dense"}
ATTENTION = {"history": "item"}


def write_history(path: Path, rows: int, seed: int) -> Path:
    """Rows whose label says, in 19 of 20, whether the item is in the history; half of them have it there.

    Which items there are, and which item is asked for, tells nothing by itself.
    """
    rng = np.random.default_rng(seed)
    lines = ["clicked,item,history,age,scores"]
    for at in range(rows):
        history = rng.choice(ITEMS, rng.integers(0, 7), replace=False)
        others = np.setdiff1d(np.arange(ITEMS), history)
        inside = bool(len(history)) and rng.random() < 0.5
        item = rng.choice(history if inside else others)
        clicked = inside if rng.random() < 0.95 else not inside
        shown = "|".join(f"i{one}" for one in history)
        scores = "|".join(f"{one / 4:g}" for one in rng.integers(0, 9, len(history)))
        lines.append(f"{int(clicked)},i{item},{shown},{at % 7},{scores}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A file to train on, and one to score."""
    folder = tmp_path_factory.mktemp("history")
    return write_history(folder / "train.csv", ROWS, 1), write_history(folder / "eval.csv", EVAL_ROWS, 2)


def settings_of(
    logs: tuple[Path, Path],
    columns: Mapping[str, Any] = COLUMNS,
    model: Mapping[str, Any] | None = None,
    **changes: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    base: dict[str, dict[str, Any]] = {
        "data": {
            "format": "csv",
            "path": str(logs[0]),
            "eval_path": str(logs[1]),
            "columns": dict(columns),
            "epochs": 3,
        },
        "model": {"name": "din", "attention": ATTENTION, "table_rows": 400, "bottom": None, "top": [16]}
        | dict(model or {}),
        "trainer": {"count": 2, "batch": 64, "optimizer": "adam", "lr": 0.01},
        "embedding": {"nodes": 2, "lr": 0.2, "init_scale": 0.3, "optimizer": "adagrad"},
        # How many rounds there are in the background is up to the machine; with few the center learns less.
        "sync": {"mode": "fixed", "every": 5},
    }
    return {name: base.get(name, {}) | dict(changes.get(name, {})) for name in base | changes}


def run(cluster: ClusterMaker, settings: dict[str, dict[str, Any]]) -> RunFolder:
    return finished(cluster, settings, faults=(scored_on_a_thread,))


@pytest.mark.matrix
def test_attention_finds_the_item_in_the_history(cluster: ClusterMaker, logs: tuple[Path, Path]) -> None:
    """The control is the same MLP on the mean of the history, the paper's base model."""
    twice = {"epochs": 2}
    ne = run(cluster, settings_of(logs, data=twice)).ne
    assert ne < 0.55
    pooled = COLUMNS | {"history": HISTORY | {"pooling": "mean"}}
    base = run(cluster, settings_of(logs, pooled, {"attention": None}, run={"name": "base"}, data=twice))
    assert base.ne > ne + 0.15


def test_a_saved_model_scores_as_the_job_did(
    cluster: ClusterMaker, logs: tuple[Path, Path], tmp_path: Path
) -> None:
    validation_file = shutil.copy(logs[1], tmp_path / "validation.csv")
    data = {"epochs": 1, "validation_path": str(validation_file)}
    own = run(cluster, settings_of(logs, model={"options": {"positions": True}}, data=data))
    ne = own.ne
    assert present(own.report.validation).best == pytest.approx(ne, rel=1e-4)
    model = SavedModel.open(own.folder)
    assert evaluate_model(model, [str(logs[1])])["ne"] == pytest.approx(ne, rel=1e-4)
    lines = [line.split(",") for line in logs[1].read_text("utf-8").splitlines()]
    columns = {name: [line[at] for line in lines[1:]] for at, name in enumerate(lines[0])}
    labels = np.array(columns.pop("clicked"), np.float64)
    for scored in (model.predict(logs[1]), model.predict(columns)):
        p = scored.astype(np.float64)
        logloss = -np.log(np.where(labels == 1, p, 1 - p)).mean()
        rate = labels.mean()
        entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
        assert logloss / entropy == pytest.approx(ne, rel=1e-3)
    served = ServedModel(model)
    rows = [dict(zip(("item", "history", "age"), values, strict=True)) for values in SERVED]
    (scores,) = served.score([columns_of_request({"rows": rows}, served.schema, 9)])
    assert isinstance(scores, Scores)
    wanted = model.predict({name: [row[name] for row in rows] for name in rows[0]})
    np.testing.assert_allclose(scores.probabilities, wanted, rtol=1e-5)
    assert len(set(scores.probabilities.tolist())) == len(SERVED), "each history has its own score"


SERVED = [("i1", ["i1", "i2"], 1), ("i1", ["i2", "i1"], 1), ("i1", [], 1), ("i1", ["i3"], 1)]


@pytest.mark.matrix
@pytest.mark.parametrize("how", ["two workers on prepared input", "a device"])
def test_however_it_is_trained(
    cluster: ClusterMaker, logs: tuple[Path, Path], tmp_path: Path, how: str
) -> None:
    settings = settings_of(logs, data={"epochs": 2})
    settings["trainer"] |= {"count": 1}
    if how == "a device":
        assert finished(cluster, settings, faults=[fake_device]).ne < 0.65
        return
    prepare_folder(job_of_tree(without_nones(settings)), tmp_path / "prepared")
    settings["trainer"] |= {"workers": 2}
    settings["data"] |= {"prepared": str(tmp_path / "prepared")}
    assert finished(cluster, settings).ne < 0.65


def without_nones(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        name: {key: value for key, value in section.items() if value is not None}
        for name, section in settings.items()
    }


@pytest.mark.matrix
def test_a_run_goes_on_from_its_checkpoint(cluster: ClusterMaker, logs: tuple[Path, Path]) -> None:
    settings = settings_of(logs, data={"epochs": 2})
    first = interrupted(cluster, settings, 20)
    second = run(cluster, going_on(settings, first))
    check_trained_once([first, second], 2, ROWS)
    assert second.ne < 0.65


def write_weighted(path: Path, rows: int, seed: int) -> Path:
    """Rows whose label is whether the ids of the first half have more than half of the weight."""
    rng = np.random.default_rng(seed)
    lines = ["clicked,tags,scores"]
    while len(lines) <= rows:
        tags = rng.choice(ITEMS, 4, replace=False)
        weights = rng.integers(0, 9, 4)
        low = weights[tags < ITEMS // 2].sum()
        if 2 * low == weights.sum():
            continue
        shown, scores = "|".join(f"t{tag}" for tag in tags), "|".join(map(str, weights))
        lines.append(f"{int(2 * low > weights.sum())},{shown},{scores}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.matrix
def test_weights_of_items_tell(cluster: ClusterMaker, tmp_path: Path) -> None:
    logs = write_weighted(tmp_path / "train.csv", 8000, 1), write_weighted(tmp_path / "eval.csv", 2000, 2)
    found = list[float]()
    for tags in ({"weights": "scores"}, {"weights": "scores", "pooling": "sum"}, {}):
        columns = {"clicked": "label", "tags": {"kind": "multi_hot", "pooling": "mean", **tags}}
        model = {"name": "dcn_v2", "attention": None}
        name = {"name": f"job-{len(found)}"}
        own = run(cluster, settings_of(logs, columns, model, run=name, data={"epochs": 1}))
        found.append(own.ne)
    *weighted, without = found
    assert max(weighted) < 0.45
    assert without > max(weighted) + 0.15, "the control"


@pytest.mark.matrix
def test_emulated_machines_train_it_too(job_file: JobMaker, logs: tuple[Path, Path]) -> None:
    job = load_job(str(job_file(settings_of(logs, data={"epochs": 1}))))
    first, second = (run_virtual(job, Timing(step_seconds=0.02, round_cpu_seconds=0.001)) for _ in range(2))
    assert first == second
    assert first.examples == ROWS
    assert present(first.ne) < 0.75
