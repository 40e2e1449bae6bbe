"""Whole jobs with two labels: each is learned and scored, wherever the model is used."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray
from shadowsync.cli import main
from shadowsync.lab.virtual.job import run_virtual
from shadowsync.lab.virtual.timing import Timing
from shadowsync.nodes.coordinator.validation.process import score
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.metrics.quality import QualitySums
from shadowsync.pipeline.performance.priority import at_priority
from shadowsync.pipeline.prepare.preparation import prepare_folder
from shadowsync.pipeline.saved_model.evaluate import evaluate_model
from shadowsync.pipeline.saved_model.export import export_model
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.serving.client import ScoringClient
from shadowsync.serving.follower import FollowedModel
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.commands import said
from shadowsync.tests.support.jobs.deterministic import digests
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished, shared_run
from shadowsync.tests.support.jobs.node_faults import scored_on_a_thread
from shadowsync.tests.support.jobs.resumed import check_trained_once, going_on, interrupted, same, tensors
from shadowsync.tests.support.jobs.runs import RunFolder, Settings, small_job, write_job
from shadowsync.tests.support.outside.served import with_client

HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnxscript", "onnxruntime"))
EXAMPLES = 16_000
COLUMNS: dict[str, Any] = {
    "clicked": {"kind": "label", "source": "label"},
    "bought": {"kind": "label", "threshold": 10},
    "I*": "dense",
    "C*": "categorical",
}


def add_label(path: Path) -> None:
    """`bought` is a price, at least 10 with a chance that depends on two of the columns."""
    rows = pl.read_parquet(path)
    generator = np.random.default_rng(len(rows))
    logit = np.full(len(rows), -1.0)
    for name in ("C1", "C2"):
        logit += 1.5 * np.sin(rows[name].hash(7).to_numpy().astype(np.float64) % 1000)
    chance = 1 / (1 + np.exp(-logit))
    price = np.where(generator.random(len(rows)) < chance, 12.5, 3.0)
    rows.with_columns(bought=pl.Series(price)).write_parquet(path)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two-labels")
    generate_log(folder, examples=EXAMPLES, eval_examples=6_000, seed=5, data_format="parquet", files=2)
    for path in folder.glob("*.parquet"):
        add_label(path)
    (held_out,) = folder.glob("eval-*.parquet")
    rows = pl.read_parquet(held_out)
    rows[:4_000].write_parquet(held_out)
    rows[4_000:].write_parquet(folder / "validation.parquet")
    return folder


def settings(log: Path, name: str, weight: float = 1.0, **changes: Mapping[str, Any]) -> Settings:
    """A job of both labels on this log."""
    columns = {**COLUMNS, "bought": {**COLUMNS["bought"], "loss_weight": weight}}
    data = {
        "path": str(log / "train-*.parquet"),
        "eval_path": str(log / "eval-*.parquet"),
        "columns": columns,
    }
    model = {"name": "mmoe", "options": {"experts": 3}, "output_bias": "label_rate"}
    # How many rounds there are in the background is up to the machine, and so is how far the center is then.
    sync = {"mode": "fixed", "every": 5}
    base: dict[str, Any] = {"data": data, "model": model, "run": {"name": name}, "sync": sync}
    return {
        section: {**base.get(section, {}), **changes.get(section, {})}
        for section in dict.fromkeys([*base, *changes])
    }


def alone(log: Path, name: str, **changes: Mapping[str, Any]) -> Settings:
    """A job that ends with the same model on a machine of any speed."""
    fixed: dict[str, Mapping[str, Any]] = {
        "trainer": {"count": 1, "batch": 256, **changes.pop("trainer", {})},
        "sync": {"algorithm": "none", "mode": None, "every": None},
        "run": {"name": name, "deterministic": True},
    }
    return settings(log, name, 1.0, **fixed, **changes)


@pytest.fixture(scope="module")
def run(log: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Two trainers, with validation and a progressive part; not to be changed."""
    changes = settings(
        log,
        "both",
        data={
            "epochs": 1,
            "shuffle_window": 0,
            "split": {"progressive": 0.25},
            "validation_path": str(log / "validation.parquet"),
        },
        watch={"tensorboard": True},
    )
    return shared_run(tmp_path_factory.mktemp("two-labels-run"), log, changes, faults=(scored_on_a_thread,))


@pytest.fixture(scope="module")
def model(run: RunFolder) -> SavedModel:
    return SavedModel.open(run.folder)


@pytest.fixture(scope="module")
def truth(log: Path) -> NDArray[np.float64]:
    """Both labels of the held-out rows, [n, 2]."""
    rows = pl.read_parquet(str(log / "eval-*.parquet"))
    return np.stack([rows["label"].to_numpy(), (rows["bought"] >= 10).to_numpy()], axis=1).astype(np.float64)


def bought_rate(log: Path) -> float:
    rows = pl.read_parquet(str(log / "train-*.parquet"))
    return float((rows["bought"].to_numpy() >= 10).mean())


def ne_of(probability: NDArray[Any], labels: NDArray[np.float64]) -> float:
    """Normalized entropy by its definition."""
    p, rate = probability.astype(np.float64), labels.mean()
    loss = -(labels * np.log(p) + (1 - labels) * np.log1p(-p)).mean()
    return float(loss / -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate)))


def test_both_labels_are_learned(run: RunFolder, log: Path) -> None:
    report = run.report
    found = run.evaluation.labels
    assert list(found) == ["clicked", "bought"]
    for one in found.values():
        assert one.ne is not None
        # The label rate alone has 1. How far below the center is depends on how long one trainer had all the
        # batches; the order of its scores does not.
        assert one.ne < 1.0
        assert present(one.auc) > 0.6
        assert one.calibration == pytest.approx(1.0, abs=0.3)
        assert len(one.calibration_curve) == 20
    assert run.ne == found["clicked"].ne
    part = present(report.train.progressive)
    assert list(part.labels) == ["clicked", "bought"]
    assert part.labels["clicked"].ne == part.ne
    assert part.labels["bought"].ne is not None
    assert part.labels["bought"].ne < 1.0
    training = report.train.ne_by_label
    assert list(training) == ["clicked", "bought"]
    assert training["clicked"] == report.train.ne_progressive
    assert training["bought"] is not None
    assert training["bought"] < 1.02
    assert training["bought"] != training["clicked"]
    (hour,) = report.train.hours
    assert {name: one.ne for name, one in hour.labels.items()} == training
    assert hour.labels["bought"].label_rate == pytest.approx(bought_rate(log), abs=1e-9)
    text = (run.folder / "report.md").read_text()
    assert f"| NE in training of bought | {training['bought']:.4f} |" in text
    assert "| clicked |" in text
    assert f"| bought | {found['bought'].ne:.4f} | {found['bought'].auc:.4f} |" in text


@pytest.mark.matrix
def test_without_its_loss_a_label_is_not_learned(cluster: ClusterMaker, log: Path, run: RunFolder) -> None:
    """The control of the test above, and of the weight of a loss."""
    control = finished(cluster, settings(log, "control", 0.0)).report.eval
    learned = run.report.eval
    assert control is not None
    worse, better = control.labels["bought"].ne, present(learned).labels["bought"].ne
    assert present(worse) > present(better) + 0.03
    assert present(control.auc) > 0.6, "the headline is learned"


def test_eval_predict_and_the_report_agree(
    run: RunFolder, model: SavedModel, log: Path, truth: NDArray[np.float64], tmp_path: Path
) -> None:
    files = str(log / "eval-*.parquet")
    assert model.labels == ("clicked", "bought")
    scores = evaluate_model(model, [files])
    probabilities = model.predict(files)
    assert probabilities.shape == truth.shape
    report = run.evaluation
    for at, name in enumerate(model.labels):
        figures, reported = scores["labels"][name], report.labels[name]
        assert figures["ne"] == pytest.approx(ne_of(probabilities[:, at], truth[:, at]), rel=1e-5)
        assert figures["ne"] == pytest.approx(reported.ne, rel=1e-5)
        assert figures["auc"] == pytest.approx(reported.auc, rel=1e-5)
    assert scores["ne"] == scores["labels"]["clicked"]["ne"]
    exchanged = ne_of(probabilities[:, 0], truth[:, 1])
    assert exchanged > scores["labels"]["bought"]["ne"] + 0.02, "the control"
    out = tmp_path / "scores.parquet"
    said("predict", str(run.folder), "--data", files, "--out", str(out))
    written = pq.read_table(out)
    columns = [f"{what}_{name}" for name in model.labels for what in ("probability", "logit", "label")]
    assert written.column_names == ["file", "row", *columns]
    np.testing.assert_array_equal(written["probability_bought"].to_numpy(), probabilities[:, 1])
    np.testing.assert_array_equal(written["label_bought"].to_numpy(), truth[:, 1])
    assert f"{scores['labels']['bought']['ne']:.4f}" in said("eval", str(run.folder), "--data", files)
    taken = CliRunner().invoke(
        main, ["predict", str(run.folder), "--data", files, "--out", str(out), "--keep", "logit_bought"]
    )
    assert "already has a column 'logit_bought'" in taken.output


def test_rows_without_labels_are_scored(model: SavedModel, log: Path, tmp_path: Path) -> None:
    rows = pl.read_parquet(str(log / "eval-*.parquet"))[:50]
    whole = model.predict(rows.to_arrow())
    rows.drop("bought", "label").write_parquet(tmp_path / "bare.parquet")
    np.testing.assert_array_equal(model.predict(tmp_path / "bare.parquet"), whole)
    broken = rows.drop("bought").with_columns(I1=pl.Series([float("inf")] + [1.0] * 49))
    found = model.predict(broken.to_arrow())
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1:]).all()


def test_validation_and_its_series(run: RunFolder) -> None:
    validation = present(run.report.validation)
    assert validation.best == validation.best_metrics["ne"]
    assert validation.best_metrics["ne/bought"] < 1.0
    assert validation.best_metrics["auc/bought"] > 0.6
    assert validation.best_metrics["ne/bought"] != validation.best
    assert "NE of bought" in (run.folder / "report.md").read_text()
    reply = at_priority(0, score({"checkpoint": str(run.folder / "checkpoint"), "spans": []}))
    assert QualitySums.from_array(np.array(reply["sums"])).examples == 0
    (events,) = (run.folder / "tensorboard").iterdir()
    content = events.read_bytes()
    for tag in ("ne/validation", "ne/bought/validation", "auc/bought/validation", "ne/bought/all"):
        assert tag.encode() in content


def test_served_and_exported(model: SavedModel, run: RunFolder, log: Path, tmp_path: Path) -> None:
    rows = pl.read_parquet(str(log / "eval-*.parquet"))[:40].drop("bought", "label")
    expected = model.predict(rows.to_arrow())

    def ask(client: ScoringClient) -> tuple[NDArray[np.float32], dict[str, Any]]:
        body = json.dumps({"rows": rows.to_dicts()})
        return client.score(rows.to_dicts()), client._request("POST", "/score", body)

    found, raw = with_client(FollowedModel(run.folder, "auto"), ask)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert list(raw["probabilities"]) == ["clicked", "bought"]
    manifest = export_model(model, tmp_path / "export", "torch-export", "none")
    assert manifest["dense"]["output"]["shape"] == ["batch", 2]
    assert manifest["dense"]["output"]["labels"] == ["clicked", "bought"]
    program = torch.export.load(tmp_path / "export" / "dense.pt2").module()
    dense = torch.randn(5, model.job.model_inputs[0])
    embeddings = [torch.randn(5, table.dim) for table in model.tables.values()]
    torch.testing.assert_close(program(dense, embeddings), model.dense(dense, embeddings))


@pytest.mark.matrix
@pytest.mark.skipif(not HAS_ONNX, reason="needs onnxscript and onnxruntime")
def test_exported_as_onnx(model: SavedModel, tmp_path: Path) -> None:
    from onnxruntime import InferenceSession

    dense = torch.randn(5, model.job.model_inputs[0])
    embeddings = [torch.randn(5, table.dim) for table in model.tables.values()]
    export_model(model, tmp_path / "onnx", "onnx", "none")
    session = InferenceSession(tmp_path / "onnx" / "dense.onnx")
    names = [given.name for given in session.get_inputs()]
    values = {name: one.numpy() for name, one in zip(names, (dense, *embeddings), strict=True)}
    (scored,) = session.run(["logits"], values)
    torch.testing.assert_close(torch.from_numpy(scored), model.dense(dense, embeddings))


def test_slices_of_each_label(run: RunFolder, log: Path, truth: NDArray[np.float64]) -> None:
    files = str(log / "eval-*.parquet")
    command = ["eval", str(run.folder), "--data", files, "--json", "--slices", "100000"]

    def by_value(*options: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(said(*command, "--by", "C3", *options))["by"]
        return found

    found = {label: by_value("--label", label) for label in ("clicked", "bought")}
    for at, one in enumerate(found.values()):
        positives = sum(value["rate"] * value["examples"] for value in one["slices"])
        assert positives == pytest.approx(truth[:, at].sum())
    assert by_value() == found["clicked"]
    assert found["clicked"]["gauc"] != found["bought"]["gauc"]
    wrong = CliRunner().invoke(main, [*command, "--by", "C3", "--label", "bougth"])
    assert "there is no label 'bougth'; did you mean 'bought'?" in wrong.output
    assert "--label goes with --by" in said(*command, "--label", "bought", code=2)


@pytest.mark.matrix
def test_a_resumed_run_ends_as_one_that_was_never_stopped(cluster: ClusterMaker, log: Path) -> None:
    data = {"epochs": 2}
    whole = finished(cluster, alone(log, "whole", data=data))
    first = interrupted(cluster, alone(log, "first", data=data), 20)
    second = finished(cluster, going_on(alone(log, "second", data=data), first))
    check_trained_once([first, second], 2, EXAMPLES)
    for label in ("clicked", "bought"):
        ne, expected = second.evaluation.labels[label].ne, whole.evaluation.labels[label].ne
        assert present(ne) == pytest.approx(present(expected), abs=0.02)
    assert not same(tensors(first), tensors(second)), "the control"


@pytest.mark.matrix
def test_prepared_input_and_the_virtual_lab_give_the_same_model(
    cluster: ClusterMaker, log: Path, tmp_path: Path
) -> None:
    source = finished(cluster, alone(log, "source"))
    job: Job = load_job(source_job(log, tmp_path))
    prepare_folder(job, tmp_path / "prepared")
    prepared = finished(
        cluster, alone(log, "prepared-run", data={"prepared": str(tmp_path / "prepared"), "columns": None})
    )
    assert digests(prepared) == digests(source)
    assert source.report.eval is not None
    assert prepared.evaluation.labels == source.report.eval.labels
    emulated = run_virtual(job, Timing(step_seconds=0.5))
    assert source.report.eval.ne == pytest.approx(emulated.ne, abs=1e-12)
    for name, one in source.report.eval.labels.items():
        assert one.ne == pytest.approx(emulated.labels[name].ne, abs=1e-12)
        assert source.report.train.ne_by_label[name] == pytest.approx(
            emulated.labels[name].training_ne, rel=1e-6
        )
    assert emulated.labels["clicked"] != emulated.labels["bought"], "the control"


def source_job(log: Path, folder: Path) -> Path:
    return write_job(folder / "source.toml", small_job(log, folder / "runs"), alone(log, "source"))
