"""The state of a center that merges, in a checkpoint: such as its momentum.

Each sync node writes its part; together they are whole tensors, so a resumed run may cut the center in other
slices.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from ...pipeline.checkpoint.files import FileEntry, write_tensors
from ...pipeline.checkpoint.reader import TensorReader
from ...pipeline.checkpoint.saved import open_saved
from ...pipeline.checkpoint.store.contract import PartTarget
from ...pipeline.config.job import Job

ROLE: Final = "center-state"
_MERGES: Final = "merges"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CenterMemory:
    """What the algorithm keeps of a slice between merges: tensors by name, float32 [n], and their number."""

    tensors: dict[str, torch.Tensor]
    merges: int


def write_center_state(
    target: Path | PartTarget, index: int, start: int, memory: CenterMemory
) -> list[FileEntry]:
    """Write the state of the slice from element `start` on; raises what `write_tensors` does."""
    tensors = {name: tensor.numpy() for name, tensor in memory.tensors.items()}
    metadata = {"role": ROLE, _MERGES: str(memory.merges)}
    return write_tensors(
        target, f"{ROLE}-{index}", tensors, metadata, first_rows=dict.fromkeys(tensors, start)
    )


def read_center_state(job: Job, names: Sequence[str], start: int, stop: int) -> CenterMemory | None:
    """Return the state of elements `start` to `stop`, if the job goes on with a run that saved it.

    None if it does not, and of another algorithm, of a checkpoint without such a state or with too few
    elements; the latter is logged. Raises CheckpointError and StorageError.
    """
    if not job.start.resume or not names:
        return None
    folder, manifest = open_saved(job.start.checkpoint, which=job.start.which)
    files = [entry for entry in manifest.files if entry.role == ROLE]
    if not files or manifest.job.get("sync", {}).get("algorithm") != job.sync.algorithm:
        return None
    reader = TensorReader(folder, files)
    if missing := [name for name in names if name not in reader.names or reader.shape(name)[0] < stop]:
        log.warning("the center begins without %s: the checkpoint has none of this size", ", ".join(missing))
        return None
    tensors = {name: torch.from_numpy(reader.read_rows(name, start, stop)) for name in names}
    # A slice that was made again had fewer; its state counts as that of the others.
    return CenterMemory(tensors, max(int(metadata[_MERGES]) for metadata in reader.metadata.values()))
