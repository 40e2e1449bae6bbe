"""The first rows of Criteo's own click log, raw and compressed as they came."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

import pytest
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished

NAME = "criteo_first10k.tsv.gz"
EPOCHS = 3

pytestmark = pytest.mark.data


@pytest.fixture
def criteo() -> Path:
    """The file that SHADOWSYNC_DATA has."""
    folder = os.environ.get("SHADOWSYNC_DATA")
    if not folder or not (Path(folder) / NAME).exists():
        pytest.skip(f"SHADOWSYNC_DATA names no folder with {NAME}")
    return Path(folder) / NAME


def test_several_epochs_from_the_raw_file(cluster: ClusterMaker, criteo: Path, tmp_path: Path) -> None:
    with gzip.open(criteo, "rb") as file:
        lines = sum(1 for _ in file)
    # What was trained on is scored on purpose, so under another name: a file is in one part only.
    again = shutil.copy(criteo, tmp_path / f"again-{NAME}")
    data = {"format": "criteo_tsv", "path": str(criteo), "eval_path": str(again), "epochs": EPOCHS}
    run = finished(cluster, {"data": data, "embedding": {"nodes": 2}})
    report = run.report
    counted = report.examples
    assert counted.trained == counted.distinct == counted.read
    assert counted.trained + counted.bad_rows == EPOCHS * lines
    assert counted.bad_rows == 0
    per_epoch = run.query("SELECT epoch, sum(examples) FROM batches GROUP BY epoch ORDER BY epoch")
    assert per_epoch == [(epoch, lines) for epoch in range(EPOCHS)]
    assert run.evaluation.examples == lines
    # It has learned: on rows that it has seen, it is better than their mean.
    assert run.ne < 0.98
