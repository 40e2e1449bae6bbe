"""Embedding shards written to a folder as the nodes of a job write them, without the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shadowsync.nodes.embedding.shard_part import ShardPart
from shadowsync.pipeline.checkpoint.files import FileEntry
from shadowsync.pipeline.checkpoint.manifest import CheckpointManifest
from shadowsync.pipeline.embedding.storage.applied import AppliedBatches
from shadowsync.pipeline.embedding.storage.saved_tables import SavedTables
from shadowsync.pipeline.embedding.storage.store import ShardStore


def manifest_of_files(files: Sequence[FileEntry]) -> CheckpointManifest:
    """A manifest that names these files and says nothing else."""
    return CheckpointManifest(
        created_at="2020-01-01T00:00:00+00:00",
        run="test",
        job={},
        job_digest="",
        model="",
        examples_trained=0,
        files=list(files),
        plan={},
        ledger={},
    )


def save_shards(
    folder: Path, stores: Sequence[ShardStore], applied: Sequence[AppliedBatches] | None = None
) -> SavedTables:
    """Writes the stores, and opens what was written."""
    sets = applied or [AppliedBatches() for _ in stores]
    files = [
        entry
        for store, own in zip(stores, sets, strict=True)
        for entry in ShardPart.of(store, own).write(folder)
    ]
    return SavedTables(folder, manifest_of_files(files))
