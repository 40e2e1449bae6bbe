"""Whole jobs on logs in which clicks are rare."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.pipeline.saved_model.evaluate import evaluate_model
from shadowsync.pipeline.saved_model.export import export_model
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.resumed import going_on
from shadowsync.tests.support.jobs.runs import Settings


@pytest.fixture(scope="module")
def rare_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rare")
    generate_log(
        folder, examples=8_000, eval_examples=4_000, seed=3, data_format="parquet", files=2, click_rate=0.01
    )
    return folder


def of_log(log: Path, name: str, **changes: Mapping[str, Any]) -> Settings:
    files: dict[str, Any] = {
        "path": [str(log / "train-*.parquet")],
        "eval_path": [str(log / "eval-*.parquet")],
    }
    return {"run": {"name": name}, **changes, "data": {**files, **changes.get("data", {})}}


def repeatable(log: Path, name: str, **changes: Mapping[str, Any]) -> Settings:
    """A job that ends with the same model on a machine of any speed."""
    alone: dict[str, dict[str, Any]] = {"trainer": {"count": 1}, "sync": {"algorithm": "none"}}
    return of_log(log, name, **alone, run={"name": name, "deterministic": True}, **changes)


@pytest.mark.matrix
def test_the_label_rate_spares_training_the_way_to_it(cluster: ClusterMaker, rare_log: Path) -> None:
    """Two trainers, which are refused unless their first weights are equal."""
    found = []
    for bias in ("label_rate", "drawn"):
        run = finished(cluster, of_log(rare_log, bias, model={"output_bias": bias}))
        found.append(present(run.report.train.ne_progressive))
    assert found[0] < 1.3
    assert found[1] > found[0] + 0.3, "the control"


def test_scores_are_calibrated_where_negatives_were_left_out(
    cluster: ClusterMaker, rare_log: Path, tmp_path: Path
) -> None:
    """The report's figures, `eval`'s and `predict`'s are of one and the same correction."""
    share, data = 0.1, {"negative_share": 0.1, "epochs": 2}
    run = finished(cluster, repeatable(rare_log, "share", data=data))
    report, rows = run.report, pl.concat([pl.read_parquet(path) for path in rare_log.glob("train-*.parquet")])
    positives = int(rows["label"].sum())
    negatives = len(rows) - positives
    counts = report.examples
    assert counts.read == counts.trained == counts.distinct
    assert counts.read + counts.dropped_negatives == 2 * len(rows)
    assert 0.08 < (counts.read / 2 - positives) / negatives < 0.12
    assert f"{counts.dropped_negatives:,}" in (run.folder / "report.md").read_text()
    held_out = str(rare_log / "eval-*.parquet")
    model = SavedModel.open(run.folder)
    scores = evaluate_model(model, [held_out])
    assert present(report.eval).calibration == pytest.approx(scores["calibration"], rel=1e-5)
    assert 0.4 < scores["calibration"] < 2.5
    probability = model.predict(held_out).astype(np.float64)
    raw = probability / (probability + (1 - probability) * share)
    assert np.allclose(raw / (raw + (1 - raw) / share), probability, rtol=1e-6)
    truth = pl.read_parquet(held_out)["label"].mean()
    assert probability.mean() / truth == pytest.approx(scores["calibration"], rel=1e-4)
    assert raw.mean() / truth > 2.5, "the control: as the model was trained"
    dense = export_model(model, tmp_path / "export", "torch-export", "none")["dense"]
    assert dense["negative_share"] == share
    assert dense["probability"].startswith("p / (p + (1 - p) * positive_weight / negative_share)")


@pytest.mark.matrix
def test_a_resumed_run_leaves_out_the_same_negatives(cluster: ClusterMaker, rare_log: Path) -> None:
    settings = of_log(rare_log, "whole", data={"negative_share": 0.2, "epochs": 2}, trainer={"batch": 32})
    once = finished(cluster, of_log(rare_log, "once", data={"negative_share": 0.2}, trainer={"batch": 32}))
    resumed = finished(cluster, going_on(settings, once, {}))
    assert resumed.report.restored_examples == once.report.examples.distinct
    assert resumed.report.examples.distinct == once.report.examples.distinct
    assert resumed.report.examples.dropped_negatives == once.report.examples.dropped_negatives > 0


@pytest.mark.matrix
def test_weighted_positives_are_calibrated_back_and_focal_scores_are_not(
    cluster: ClusterMaker, rare_log: Path
) -> None:
    """The NE in training, too, is of the true probabilities."""
    found: dict[str, tuple[float, float]] = {}
    models: dict[str, dict[str, Any]] = {"weight": {"positive_weight": 8.0}, "focal": {"loss": "focal"}}
    for name, model in models.items():
        report = finished(cluster, repeatable(rare_log, name, model=model)).report
        found[name] = present(report.train.ne_progressive), present(present(report.eval).calibration)
    assert found["weight"][0] < 1.4, "8 times the odds would be far worse than the mean label"
    assert 0.2 < found["weight"][1] < 3.0
    assert found["focal"][1] > 1.5 * found["weight"][1], "focal scores lie nearer to even odds"
