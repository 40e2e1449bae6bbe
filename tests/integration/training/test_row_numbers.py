"""Positions of rows in whole jobs: each row that a loss of one's own sees has its own, from any input."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
import torch
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.models.own.loss import LossBatch
from shadowsync.pipeline.prepare.preparation import prepare_folder
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.runs import Settings, small_job, write_job
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

ROWS = 8000


class Guarded(nn.Module):
    """A logistic regression whose loss is not a number unless each row is where its column `at` says."""

    shift = 0

    def __init__(self, dense_features: int, embedding_dims: list[int]) -> None:
        super().__init__()
        assert dense_features == 1
        self.linear = nn.Linear(sum(embedding_dims), 1)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Logits [B], and where the rows are."""
        return {"logits": self.linear(torch.cat(embeddings, dim=1)).squeeze(1), "at": dense[:, 0]}

    def loss(self, outputs: dict[str, torch.Tensor], batch: LossBatch) -> torch.Tensor:
        """The mean log loss."""
        loss = binary_cross_entropy_with_logits(outputs["logits"], batch.labels)
        # The model is tried with two rows of zeros.
        wrong = (outputs["at"] > 0) & (outputs["at"].long() != present(batch.positions) + self.shift)
        return loss * torch.where(wrong.any(), torch.nan, 1.0)

    def scores(self, outputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Scores [B]."""
        return outputs["logits"]


class Shifted(Guarded):
    """Expects each row one place on."""

    shift = 1


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV file of several spans, and the same rows compressed and as Parquet."""
    path, draw = tmp_path_factory.mktemp("rows") / "log.csv", np.random.default_rng(1)
    items = draw.integers(0, 50, ROWS)
    table = pa.table(
        {
            "y": (draw.random(ROWS) < 0.2 + items / 100).astype(np.int64),
            "at": np.arange(ROWS),
            "item": [f"an item with a long name, number {item}" for item in items],
        }
    )
    pcsv.write_csv(table, path)
    path.with_suffix(".csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    pq.write_table(table, path.with_suffix(".parquet"), row_group_size=1000)
    assert path.stat().st_size > 4 << 16
    return path


def settings_of(path: Path, model: type[nn.Module] = Guarded, **trainer: Any) -> Settings:
    columns = {
        "place": "row_number",
        "y": "label",
        "at": {"kind": "dense", "transform": "none"},
        "item": "categorical",
    }
    return {
        "data": {
            "format": "parquet" if path.suffix == ".parquet" else "csv",
            "path": str(path),
            "eval_path": None,
            "columns": columns,
            "span_bytes": 1 << 16,
            "shuffle_window": 512,
            "epochs": 2,
            "readers": 2,
        },
        "model": {
            "name": f"{model.__module__}:{model.__name__}",
            "loss": "own",
            "scores": "own",
            "bottom": None,
            "top": None,
            "output_bias": None,
            "embedding_dim": 4,
            "table_rows": 1000,
        },
        "trainer": {"count": 1, "workers": 2, "batch": 64} | trainer,
    }


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_each_row_has_its_position(cluster: ClusterMaker, log: Path, suffix: str) -> None:
    run = finished(cluster, settings_of(log.with_suffix(suffix)))
    assert run.report.examples.distinct == 2 * ROWS
    assert not run.query("SELECT number FROM left_out")


def test_a_prepared_folder_has_the_positions_in_its_sources(
    cluster: ClusterMaker, log: Path, tmp_path: Path
) -> None:
    settings = settings_of(log)
    job = write_job(tmp_path / "job.toml", small_job(log, tmp_path / "runs"), settings)
    prepare_folder(load_job(job), tmp_path / "prepared")
    data = dict(settings["data"]) | {"prepared": str(tmp_path / "prepared")}
    run = finished(cluster, {**settings, "data": data})
    assert run.report.examples.distinct == 2 * ROWS


def test_the_control_finds_other_positions(cluster: ClusterMaker, log: Path) -> None:
    own = cluster(settings_of(log, Shifted)).start()
    assert own.wait() != 0
    assert "its loss is not finite" in own.coordinator.text()
