"""examples/own_loss: a loss over pairs of a user's rows, its scores in all that scores, the best by NDCG."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import shadowsync
import torch
from shadowsync.pipeline.models.registry import zero_inputs
from shadowsync.pipeline.saved_model.evaluate import SCORE_BATCH
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.serving.scores import Scores, ServedModel
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.processes import Starter
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder

EXAMPLE = Path(shadowsync.__file__).resolve().parent / "examples" / "own_loss"

if not EXAMPLE.exists():
    pytest.skip("an installed package has no examples beside it", allow_module_level=True)


def ndcg(frame: pl.DataFrame, k: int) -> float:
    """From the definition, over users with a click; a negative comes before a positive of the same score."""
    figures = []
    for _, rows in frame.group_by("user"):
        labels = rows.sort("score", "label", descending=[True, False])["label"].to_numpy()
        discounts = 1 / np.log2(np.arange(len(labels)) + 2)
        if labels.sum():
            best = discounts[: min(k, int(labels.sum()))].sum()
            figures.append((labels * discounts)[:k].sum() / best)
    return float(np.mean(figures))


def test_it_trains_and_is_scored(tmp_path: Path, click_log: Path, starter: Starter) -> None:
    folder = tmp_path / "own_loss"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    job_file, data = folder / "job.toml", str(click_log / "eval-*.parquet")
    text = job_file.read_text("utf-8").replace('"log/', f'"{click_log}/').replace("20000", "2000")
    (held_out,) = click_log.glob("eval-*.parquet")
    shutil.copy(held_out, folder / "test.parquet")
    text = text.replace("validation_path", 'eval_path = "test.parquet"\nvalidation_path')
    text = text.replace("every_examples = 50000", "every_examples = 8000")
    job_file.write_text(f'[run]\ndirectory = "{folder / "runs"}"\n\n{text}', encoding="utf-8")
    starter.ended("run", str(job_file), "--quiet", "--set", "trainer.count=2")
    run = RunFolder(folder / "runs" / "job")
    report, told = run.report, (run.folder / "report.md").read_text("utf-8")
    assert report.examples.distinct == EXAMPLES
    assert report.ledger.adds_up, report.ledger.identities
    _no_probabilities(report, told)

    out = folder / "scores.parquet"
    starter.ended("predict", str(run.folder), "--data", data, "--out", str(out), "--keep", "C1")
    frame = pl.read_parquet(out).rename({"C1": "user"})
    assert set(frame.columns) == {"file", "row", "score", "label", "user"}
    said = starter.ended("eval", str(run.folder), "--data", data, "--by", "C1", "--json")
    scored = json.loads(said.splitlines()[-1])
    want = ndcg(frame, 10)
    assert scored["groups"]["ndcg@10"] == pytest.approx(want, abs=1e-6)
    assert scored["by"]["ranking"]["ndcg@10"] == pytest.approx(want, abs=1e-6)
    assert report.validation is not None
    assert report.validation.best == pytest.approx(want, abs=1e-6)
    assert report.eval is not None
    assert present(report.eval.within_groups).ndcg == pytest.approx(want, abs=1e-6)
    assert report.eval.auc == pytest.approx(scored["auc"], abs=1e-6)
    # Of the pairs of a user that were scored in one batch, which are all here.
    right = pairs = 0
    for _, rows in frame.group_by("user"):
        score, label = rows["score"].to_numpy(), rows["label"].to_numpy()
        of_user = label[:, None] > label
        pairs += of_user.sum()
        right += (of_user & (score[:, None] > score)).sum()
    assert len(frame) <= SCORE_BATCH
    assert scored["own"]["pair_accuracy"] == pytest.approx(right / pairs, abs=1e-4)
    assert report.validation.best_metrics["pair_accuracy"] == scored["own"]["pair_accuracy"] > 0.5
    # The held-out files of this run are those of its validation.
    assert report.eval.own == scored["own"]
    assert "| pair_accuracy, held-out" in told
    # There is a last model beside if the best one is another.
    assert report.eval_last is None or report.eval_last.own["pair_accuracy"] is not None
    # The control: scores of chance rank worse than what was learned of the clicks.
    chance = frame.with_columns(score=pl.Series(np.random.default_rng(1).random(len(frame))))
    assert want > ndcg(chance, 10) + 0.01
    assert {"ne", "logloss", "calibration"}.isdisjoint(scored)
    model = SavedModel.open(run.folder, trust=True)
    values = model.predict(data)
    assert np.allclose(values, frame["score"].to_numpy())
    _is_served(model, click_log, values)
    starter.ended("export", str(run.folder), "--out", str(folder / "export"))
    assert "probability" not in json.loads((folder / "export" / "manifest.json").read_text("utf-8"))["dense"]
    dense, vectors = zero_inputs(model.job)
    exported = torch.export.load(folder / "export" / "dense.pt2").module()(dense + 1, vectors)
    torch.testing.assert_close(exported, model.dense(dense + 1, vectors))
    assert values.min() < 0.0, "no probabilities"


def _is_served(model: SavedModel, click_log: Path, values: Any) -> None:
    (path,) = click_log.glob("eval-*.parquet")
    served = ServedModel(model)
    rows = pl.read_parquet(path).head(7).drop("label").to_dicts()
    (scores,) = served.score([served.bodies.read(json.dumps({"rows": rows}).encode())])
    assert isinstance(scores, Scores)
    assert scores.name == "scores"
    assert np.allclose(scores.probabilities, values[:7], atol=1e-6)


def _no_probabilities(report: Any, told: str) -> None:
    assert (report.eval.ne, report.eval.logloss, report.eval.calibration) == (None, None, None)
    assert report.train.ne_progressive is None
    assert "NE, logloss and calibration are left out: the model's own scores are no probabilities." in told
    assert "NDCG, recall, MAP @10 by user, held-out" in told
    assert set(report.validation.best_metrics) == {
        "auc",
        "pr_auc",
        "lift",
        "ndcg@10",
        "recall@10",
        "map@10",
        "pair_accuracy",
    }
