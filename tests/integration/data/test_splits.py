"""A job that leaves the last rows of each id out: readers, trainers and the scoring process agree on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.runs import EXAMPLES, Settings

COLUMN = "C3"


def test_a_job_scores_the_last_row_of_each_id(cluster: ClusterMaker, click_log: Path) -> None:
    files = sorted(click_log.glob("train-*.parquet"))
    ids = [id_ for path in files for id_ in pq.read_table(path, columns=[COLUMN])[COLUMN].to_pylist()]
    # A missing one is an id, too.
    every = np.array(["" if id_ is None else id_ for id_ in ids])
    counts = np.unique(every, return_counts=True)[1]
    tested, validated = int((counts > 1).sum()), int((counts > 2).sum())
    assert 0 < validated < tested < len(counts), "ids with a single row are trained on alone"
    split = {"by": "last", "column": COLUMN}
    settings: Settings = {
        "data": {"eval_path": None, "split": split, "readers": 2},
        "model": {"table_kind": "growing", "table_rows": 20_000},
    }
    report = finished(cluster, settings).report
    assert report.examples.distinct == EXAMPLES - tested - validated
    assert present(report.eval).examples == tested
    assert present(report.validation).best is not None
