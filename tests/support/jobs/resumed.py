"""Runs that are gone on with, and what their ledgers say together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.pipeline.types import Float32Array

from .in_process_cluster import ClusterMaker, InProcessCluster, slowed_at
from .runs import RunFolder, Settings

BatchKey = tuple[int, int, int]
Changed = dict[str, dict[str, Any]]


def folder_of(cluster: InProcessCluster) -> RunFolder:
    """The run's own folder: `latest` will point to the next one."""
    return RunFolder(cluster.run.folder.resolve())


def interrupted(cluster: ClusterMaker, settings: Settings, batches: int) -> RunFolder:
    """A run that is interrupted when it has trained so many batches."""
    own, slowed = slowed_at(batches, cluster, settings)
    own.interrupted()
    slowed.release()
    return folder_of(own)


def going_on(settings: Settings, run: RunFolder, changes: Settings | None = None) -> Changed:
    """The settings of a job that goes on with a run, with changes."""
    start = {"start": {"checkpoint": str(run.folder.resolve()), "resume": True}}
    merged: Changed = {key: dict(value) for key, value in settings.items()}
    for section, values in {**start, **(changes or {})}.items():
        merged[section] = {**merged.get(section, {}), **values}
    return merged


def trained_batches(run: RunFolder) -> dict[BatchKey, int]:
    """Examples of each batch that a run itself trained."""
    rows = run.query("SELECT epoch, span, number, examples FROM batches")
    return {(epoch, span, number): examples for epoch, span, number, examples in rows}


def check_trained_once(runs: list[RunFolder], epochs: int, examples: int) -> None:
    """Every example of every epoch was trained by one of the runs, and no batch by two."""
    parts = [trained_batches(run) for run in runs]
    together: dict[BatchKey, int] = {}
    for part in parts:
        assert not together.keys() & part.keys()
        together |= part
    for epoch in range(epochs):
        assert sum(count for key, count in together.items() if key[0] == epoch) == examples


def tensors(run: RunFolder, which: str = "checkpoint") -> Mapping[str, Float32Array]:
    """Every tensor of a run's checkpoint, but for the ledger's, by its role and name."""
    folder, manifest = open_checkpoint(run.folder / which, verify=True)
    found: dict[str, Float32Array] = {}
    for role in sorted({entry.role for entry in manifest.files} - {"ledger"}):
        reader = TensorReader(folder, [entry for entry in manifest.files if entry.role == role])
        found |= {f"{role}/{name}": reader.read(name) for name in reader.names}
    return found


def same(one: Mapping[str, Float32Array], other: Mapping[str, Float32Array]) -> bool:
    """Whether both have the same tensors, to the bit."""
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def job_of(run: RunFolder) -> dict[str, Any]:
    """The resolved job of a run."""
    job: dict[str, Any] = json.loads((Path(run.folder) / "job.json").read_text(encoding="utf-8"))
    return job
