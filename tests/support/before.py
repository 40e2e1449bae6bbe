"""What an earlier version left: a run, a prepared folder and a plug-in, put into a test's folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from shadowsync.nodes.coordinator.checkpoint.running import describe_input
from shadowsync.pipeline.checkpoint.manifest import _digest
from shadowsync.pipeline.data.span import Span

BEFORE = Path(__file__).resolve().parents[1] / "golden" / "before"
PLACE = "/data/old"
TRAINED_BATCHES, EPOCHS, EXAMPLES = 19, 8, 480


def put_there(place: Path) -> Path:
    """Copy all of it to a place that does not exist yet; its run then names that in place of PLACE."""
    shutil.copytree(BEFORE, place)
    for name in ("run/job.json", "run/checkpoint/manifest.json"):
        file = place / name
        file.write_text(file.read_text("utf-8").replace(PLACE, str(place)), encoding="utf-8")
    file = place / "run" / "checkpoint" / "manifest.json"
    body = json.loads(file.read_text("utf-8"))
    # Both digests are over paths. That they are made as they were then, `test_before` sees in the originals.
    body["ledger"]["input"]["digest"] = described(str(place))["digest"]
    body.pop("sha256")
    file.write_text(json.dumps({"sha256": _digest(body), **body}), encoding="utf-8")
    return place


def described(place: str) -> dict[str, Any]:
    """Describe the input of the run, where it lies at `place`, as a checkpoint does."""
    return describe_input([Span(0, f"{place}/train.csv", "bytes", 0, 5261)])
