"""The progressive part of training: scored before its step, as an independent computation has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder

PART = 0.25

# A model that writes down what it predicts when it trains, which is before the step.
RECORDER = """
import os

import torch
from torch import nn


class Recorder(nn.Module):
    def __init__(self, dense_features: int, embedding_dims: list[int]) -> None:
        super().__init__()
        width = dense_features + sum(embedding_dims)
        self.layers = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        logits = self.layers(torch.cat([dense, *embeddings], dim=1)).squeeze(1)
        if self.training:
            with open(os.environ["RECORD"], "ab") as file:
                file.write(logits.detach().numpy().tobytes())
        return logits
"""


def test_the_report_has_what_the_model_predicted_before_its_steps(
    cluster: ClusterMaker, click_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sklearn.metrics import log_loss, roc_auc_score

    module, record = tmp_path / "recorder.py", tmp_path / "record"
    module.write_text(RECORDER, encoding="utf-8")
    monkeypatch.setenv("RECORD", str(record))
    run = finished(
        cluster,
        {
            "run": {"deterministic": True},
            "model": {"name": f"{module}:Recorder", "bottom": None, "top": None},
            "data": {"shuffle_window": 0, "eval_path": [], "split": {"progressive": PART}},
            "trainer": {"count": 1},
            "sync": {"algorithm": "none"},
        },
    )
    report = run.report
    part = present(report.train.progressive)
    assert part.model == "the trainers' replicas, each before its step"
    scored = round(EXAMPLES * PART)
    assert part.examples == part.trained == scored
    # Without shuffling the batches have the rows of the files in their order. Before the first of them every
    # process tried the model on two zeros.
    labels = pl.concat([pl.read_parquet(path) for path in sorted(click_log.glob("train-*.parquet"))])["label"]
    truth = labels.to_numpy().astype(np.float64)
    logits = np.frombuffer(record.read_bytes(), dtype=np.float32)[-EXAMPLES:].astype(np.float64)
    assert len(truth) == len(logits) == EXAMPLES

    def figures(rows: slice) -> tuple[float, float, float]:
        """NE, AUC and log loss."""
        loss = float(log_loss(truth[rows], 1.0 / (1.0 + np.exp(-logits[rows]))))
        rate = truth[rows].mean()
        entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
        return loss / float(entropy), float(roc_auc_score(truth[rows], logits[rows])), loss

    ne, auc, loss = figures(slice(EXAMPLES - scored, EXAMPLES))
    assert part.ne is not None
    assert part.ne == pytest.approx(ne, abs=1e-6)
    assert part.logloss == pytest.approx(loss, abs=1e-6)
    assert part.auc == pytest.approx(auc, abs=present(part.auc_error) + 1e-9)
    # Of any other rows, or of fewer, it would not be that.
    for rows in (slice(EXAMPLES - 2 * scored, EXAMPLES - scored), slice(EXAMPLES - scored + 128, EXAMPLES)):
        assert abs(part.ne - figures(rows)[0]) > 1e-4
    text = (run.folder / "report.md").read_text(encoding="utf-8")
    assert (
        f"NE {part.ne:.4f}, AUC {part.auc:.4f} on {scored:,} examples of the progressive part, of the" in text
    )


@pytest.mark.matrix
def test_a_job_without_such_a_part_says_nothing_of_it(saved_run: Path) -> None:
    run = RunFolder(saved_run)
    assert run.report.train.progressive is None
    assert "progressive part" not in (run.folder / "report.md").read_text(encoding="utf-8")
