"""Whole jobs on logs in which clicks are rare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.tests.support.in_process_cluster import InProcessCluster, finished_run
from shadowsync.tests.support.runs import Settings


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


def test_the_label_rate_spares_training_the_way_to_it(
    cluster: Callable[..., InProcessCluster], rare_log: Path
) -> None:
    """Two trainers, which are refused unless their first weights are equal."""
    found = []
    for bias in ("label_rate", "drawn"):
        run = finished_run(cluster, of_log(rare_log, bias, model={"output_bias": bias}))
        assert run.report.train.ne_progressive is not None
        found.append(run.report.train.ne_progressive)
    assert found[0] < 1.3
    assert found[1] > found[0] + 0.3, "the control"
