"""What a plan counts of a job's tables."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.performance.plan_basis import cost_settings, files_of_rows, rows_bytes

# Two tables of 100 rows of 16 floats and one of state: 6,800 bytes each.
COLUMNS = {"one": "categorical", "two": "categorical", "label": "label"}


@pytest.mark.parametrize(
    ("embedding", "table", "expected"),
    [
        ({}, {}, 13_600),
        # Of each of two nodes.
        ({"memory_bytes": 5_000}, {}, 10_000),
        ({"memory_bytes": 50_000}, {}, 13_600),
        ({"memory_bytes": "2kB"}, {"memory_bytes": 0}, 6_800 + 4_000),
        ({}, {"memory_bytes": 1_000}, 2_000 + 6_800),
    ],
)
def test_rows_on_disk_take_no_memory(embedding: dict[str, Any], table: dict[str, Any], expected: int) -> None:
    job = Job.model_validate(
        {
            "data": {"path": ["x.csv"], "format": "csv", "columns": COLUMNS},
            "model": {"embedding_dim": 16, "table_rows": 100},
            "embedding": {"nodes": 2, **embedding},
            "tables": {"one": {"rows": 100, **table}},
        }
    )
    assert rows_bytes(job) == expected
    # Where rows lie on disk, and only there, a plan and a pod know of it.
    assert bool(files_of_rows(job)) == (expected < 13_600)
    assert any("memory_bytes" in key for key in cost_settings(job)) == (expected < 13_600)
