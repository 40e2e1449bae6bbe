"""Deterministic jobs, and what tells whether two of them ended alike."""

from __future__ import annotations

import hashlib

from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.checkpoint.reader import TensorReader

from .runs import EXAMPLES, RunFolder, Settings

BATCH = 256
STEPS = 2 * 2 * -(-EXAMPLES // 2 // BATCH)


def deterministic(changes: Settings, seed: int, name: str) -> Settings:
    """A deterministic job of STEPS steps: two epochs of two files, each cut by itself."""
    return {
        **changes,
        "run": {"deterministic": True, "seed": seed, "name": name},
        "trainer": {"batch": BATCH, **changes.get("trainer", {}), "count": 1},
        "data": {"epochs": 2},
    }


def digests(run: RunFolder) -> dict[str, str]:
    """SHA-256 of each tensor file of the checkpoint."""
    folder, manifest = open_checkpoint(run.folder, verify=True)
    names = [entry.name for entry in manifest.files]
    assert names
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def was_trained(run: RunFolder) -> bool:
    """Whether the optimizers have seen gradients of most elements: equal bytes mean nothing without that."""
    folder, manifest = open_checkpoint(run.folder)
    reader = TensorReader(folder, [entry for entry in manifest.files if entry.role == "trainer-0"])
    return bool((reader.read("optimizer.sum") > 0).mean() > 0.5)
