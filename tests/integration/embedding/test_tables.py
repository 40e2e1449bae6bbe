"""A whole job whose tables differ in width, optimizer and rate, over several nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.embedding.storage.first_values import row_values
from shadowsync.pipeline.embedding.storage.saved_tables import SavedTables
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.evaluate_run import evaluate_run
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker

TABLES = {
    "C1": {"optimizer": "adagrad", "lr": 0.05},
    "C2": {"dim": 3, "rows": 5000},
    "C3": {"lr": 1e-9},
    "C4": {"optimizer": "sgd", "lr": 0.5, "dim": 12, "init_scale": 0.2},
}


@pytest.mark.parametrize("codec", [pytest.param("float32", marks=pytest.mark.matrix), "bfloat16"])
def test_tables_of_their_own(cluster: ClusterMaker, codec: str) -> None:
    settings: dict[str, dict[str, Any]] = {
        "tables": TABLES,
        "model": {"name": "wide_deep"},
        "embedding": {"nodes": 3},
        "codecs": {"vectors": codec, "gradients": codec},
    }
    own = cluster(settings).start()
    own.ended()
    # Not NE: how far the center is when so short a job ends depends on how busy the machine was.
    assert present(own.run.evaluation.auc) > 0.55, "0.5 is what chance gives, to within 0.01"
    folder, manifest = open_checkpoint(own.run.folder, verify=True)
    saved = SavedTables(folder, manifest)
    assert saved.nodes == 3
    assert (saved.rows("C2"), saved.dim("C2"), saved.dim("C4"), saved.dim("C5")) == (5000, 3, 12, 8)
    assert list(saved.read_state("C1", 0, 1)) == ["adagrad_squares"]
    assert list(saved.read_state("C4", 0, 1)) == []
    # The rate that is next to nothing leaves its table at its first values, and no other table.
    for number, name in ((2, "C3"), (4, "C5")):
        firsts = row_values(1, number, np.arange(saved.rows(name)), 8, 0.05)
        moved = float(np.abs(saved.read(name, 0, saved.rows(name)) - firsts).max())
        assert (moved < 1e-6) == (name == "C3")
    offline = evaluate_run(own.run.folder, list(own.job.data.eval_path))
    assert offline["ne"] == pytest.approx(own.run.ne, rel=1e-5 if codec == "float32" else 1e-3)
