"""A job whose tables are of networks of IP addresses: trained, scored and saved as others are."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished


def write_clicks(path: Path, rows: int = 6000) -> Path:
    """Clicks that depend on the first byte of the address; each address comes once or twice."""
    draw = random.Random(1)
    lines = ["clicked,client"]
    for _ in range(rows):
        first = draw.randrange(10, 30)
        clicked = int(draw.random() < (0.9 if first < 20 else 0.1))
        lines.append(f"{clicked},{first}.{draw.randrange(4)}.{draw.randrange(256)}.{draw.randrange(256)}")
    lines[5] = "1,no address"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_an_address_that_was_never_seen_scores_as_its_network(cluster: ClusterMaker, tmp_path: Path) -> None:
    log = write_clicks(tmp_path / "clicks.csv")
    columns = {"clicked": "label", "client": "ip"}
    run = finished(
        cluster,
        {
            "data": {"format": "csv", "path": str(log), "eval_path": None, "columns": columns},
            "model": {"name": "wide_deep"},
            "tables": {"client": {"kind": "growing", "rows": 1 << 14}},
            "embedding": {"lr": 0.2, "nodes": 1},
            "trainer": {"count": 1, "batch": 64},
        },
    )
    assert run.report.examples.bad_rows == 1
    model = SavedModel.open(run.folder)
    # Of neither the last two bytes came with these before, perhaps not even the /24.

    scores = model.predict([{"client": ip} for ip in ("12.3.255.1", "27.3.255.1", "200.3.255.1", None, "x")])
    assert scores[0] > 0.7 > scores[2] > 0.3 > scores[1]
    assert np.isnan(scores[4])
    assert not np.isnan(scores[3])
