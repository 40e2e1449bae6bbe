"""Page and metrics of a job that strangers fill with connections and compressed bodies change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from .doors import NODES, doors


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_strangers_at_page_and_metrics_change_nothing(tmp_path: Path) -> None:
    found = doors(tmp_path, epochs=24, connections=600, bombs=60)
    assert not found["problems"], found
    assert found["attacked"]["connections"] > 600
    assert found["attacked"]["bombs"] > 0
    assert len(found["attacked"]["memory_megabytes"]) == NODES, found["attacked"]["memory_megabytes"]
