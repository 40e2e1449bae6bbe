"""The manifest of a run's checkpoint, and the input that it states."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ...pipeline.checkpoint.files import FileEntry
from ...pipeline.checkpoint.manifest import CheckpointManifest
from ...pipeline.checkpoint.saved_ledger import SavedLedger
from ...pipeline.data.spans import Span
from .state import JobState


@dataclass(frozen=True)
class Books:
    """The ledger of one moment: what is trained, and this run's sums of it (see `LedgerTotals`)."""

    ledger: SavedLedger
    totals: Mapping[str, int]

    @classmethod
    def of(cls, state: JobState) -> Books:
        """Both as of now; on the coordinator's loop, which changes them."""
        return cls(state.ledger.saved(), dict(vars(state.ledger.totals)))


def manifest_of(state: JobState, files: list[FileEntry], model: str, books: Books) -> CheckpointManifest:
    """The manifest of a checkpoint of these files; `model` says in words which model the dense part is."""
    return CheckpointManifest(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        run=state.folder.name,
        job=state.job.model_dump(mode="json"),
        job_digest=state.job.digest,
        model=model,
        examples_trained=books.ledger.examples,
        files=files,
        plan={
            "nodes": state.job.embedding.nodes,
            "tables": {
                table.name: {
                    "rows": table.rows,
                    "dim": table.dim,
                    "optimizer": table.optimizer,
                    # Of Parquet, where an id may be a text or an integer: what was read.
                    "ids": state.input.id_classes.get(table.name),
                }
                for table in state.job.tables
            },
        },
        ledger={
            **books.totals,
            "restored_examples": state.ledger.restored_examples,
            "input": describe_input(state.ledger.spans),
        },
    )


def describe_input(spans: Sequence[Span]) -> dict[str, Any]:
    """What a run that goes on must find again: `digest` of the plan of spans, and by path the `spans`, where
    the last one `stop`s, and the `bytes` of the file, None for one that is not on this machine's disk; of a
    part of a prepared folder also `prepared`, the digest of the folder's manifest."""
    files: dict[str, dict[str, Any]] = {}
    digest = hashlib.sha256()
    for span in spans:
        place = span.number, span.path, span.kind, span.start, span.stop, span.part, span.first, span.last
        digest.update(repr(place).encode())
        known = files.setdefault(span.path, {"spans": 0, "stop": 0, "bytes": _size(span.path)})
        known["spans"] += 1
        known["stop"] = max(known["stop"], span.stop)
        if span.prepared:
            known["prepared"] = span.prepared
    return {"digest": digest.hexdigest(), "files": files}


def input_digest(spans: Sequence[Span]) -> str:
    """SHA-256 of `describe_input`, as a hex string: scores of the same digest can be compared."""
    return hashlib.sha256(json.dumps(describe_input(spans), sort_keys=True).encode()).hexdigest()


def input_differences(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """In words, what differs between two inputs; empty where nothing does."""
    if saved["digest"] == now["digest"] and saved["files"] == now["files"]:
        return []
    old, new = saved["files"], now["files"]
    found = [f"{path} is not part of it any more" for path in old if path not in new]
    found += [f"{path} is new" for path in new if path not in old]
    for path in (path for path in old if path in new):
        if old[path].get("prepared") != new[path].get("prepared"):
            found.append(f"{path} was prepared anew")
        elif old[path]["bytes"] != new[path]["bytes"]:
            found.append(f"{path} has {new[path]['bytes']} bytes and had {old[path]['bytes']}")
        elif old[path] != new[path]:
            found.append(f"{path} is cut into {new[path]['spans']} spans and was into {old[path]['spans']}")
    return found or ["the spans are cut otherwise"]


def _size(path: str) -> int | None:
    try:
        return os.path.getsize(path)
    except OSError:
        return None
