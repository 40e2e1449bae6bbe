"""A whole job on files with a schema, by URL, with bags, weights and parts; and one that does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.outside.http_files import http_files

ROWS = 8000
COLUMNS = {
    "clicked": {"kind": "label", "positive": ["yes"], "negative": ["no"]},
    "user": "categorical",
    "tags": {"kind": "multi_hot", "delimiter": "|", "pooling": "mean"},
    "count": "dense",
    "weight": "weight",
    "at": "timestamp",
}


def _log(*, learnable: bool) -> bytes:
    """Rows sorted by time whose label is in their tags, or in nothing."""
    rng = np.random.default_rng(1)
    lines = [",".join(COLUMNS)]
    for at in range(ROWS):
        tags = rng.choice(20, rng.integers(0, 4), replace=False)
        clicked = bool(tags.size and tags.min() < 5) if learnable else rng.random() < 0.5
        bag = "|".join(f"tag {tag}" for tag in tags)
        lines.append(f"{'yes' if clicked else 'no'},u{rng.integers(100)},{bag},{at % 7},{1 + at % 2},{at}")
    lines.insert(100, "maybe,u1,,1,1,99")
    return "".join(f"{line}\n" for line in lines).encode()


def _settings(path: str) -> dict[str, dict[str, Any]]:
    data = {
        "format": "csv",
        "path": path,
        "eval_path": None,
        "columns": COLUMNS,
        "order": "time",
        "split": {"by": "time", "test": 0.25},
        "shuffle_window": 0,
        "span_bytes": 1 << 16,
    }
    return {"data": data, "embedding": {"nodes": 2, "lr": 0.1}, "trainer": {"count": 2, "batch": 64}}


def _parquet(path: Path) -> bytes:
    """As `_log`, without its bad row, in small row groups."""
    lines = [line.split(",") for line in _log(learnable=True).decode().splitlines()]
    rows = [line for line in lines[1:] if line[0] != "maybe"]
    columns = dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    numbers = {name: [float(value) for value in columns[name]] for name in ("count", "weight", "at")}
    tags = {"tags": [bag.split("|") if bag else [] for bag in columns["tags"]]}
    pq.write_table(pa.table(columns | numbers | tags), path, row_group_size=1000)
    return path.read_bytes()


@pytest.mark.matrix
def test_parquet_by_url(cluster: ClusterMaker, tmp_path: Path) -> None:
    with http_files({"log.parquet": _parquet(tmp_path / "log.parquet")}, ranges=True) as url:
        settings = _settings(f"{url}/log.parquet")
        settings["data"]["format"] = "parquet"
        run = finished(cluster, settings)
    assert run.report.examples.trained == ROWS * 3 // 4
    assert run.ne < 0.5


@pytest.mark.parametrize("learnable", [True, pytest.param(False, marks=pytest.mark.matrix)])
def test_a_job_by_url(cluster: ClusterMaker, learnable: bool) -> None:
    with http_files({"log.csv": _log(learnable=learnable)}, ranges=True) as url:
        run = finished(cluster, _settings(f"{url}/log.csv"))
    counted = run.report.examples
    assert counted.trained == counted.distinct == ROWS * 3 // 4
    assert counted.bad_rows == 1
    assert run.evaluation.examples == ROWS // 4
    # The bags are what tells; where they do not, nothing is learned.
    assert (run.ne < 0.5) if learnable else (run.ne > 0.95)


def test_a_schema_that_does_not_fit_is_told_before_any_node_starts(
    cluster: ClusterMaker, tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(_log(learnable=True))
    settings = _settings(str(path))
    settings["data"]["columns"] = COLUMNS | {"user": "dense"}
    process = cluster(settings).start_coordinator()
    assert process.wait() == 3
    assert f"{path}: column user: 'u" in process.text()
    assert "are not numeric; change its kind or options in [data.columns]" in process.text()
    assert "Traceback" not in process.text()
