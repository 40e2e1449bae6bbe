"""A trainer's files of a checkpoint."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from ..pipeline.checkpoint.files import write_tensors
from .replica import Shared


def write_trainer(
    directory: Path, index: int, shared: Shared, *, dense: bool, center: torch.Tensor | None
) -> dict[str, Any]:
    """Writes trainer `index`'s replica and optimizer state and, if `dense`, the model that comes out of the
    run by parameter name: the center's values if given, else this replica's. Any thread may call, while no
    worker trains. Gives `{"files": [...], "ready": True}`."""
    name = f"trainer-{index}"
    state = {f"optimizer.{key}": value.numpy() for key, value in shared.optimizer.state.items()}
    tensors = {"replica": shared.replica.flat.numpy(), **state}
    metadata = {"role": name, "iterations": ",".join(map(str, shared.iterations))}
    entries = write_tensors(directory, name, tensors, metadata)
    if dense:
        flat = center if center is not None else shared.replica.flat
        named = {span.name: view.numpy() for span, view in shared.layout.views(flat)}
        entries += write_tensors(directory, "dense", named, {"role": "dense"})
    return {"files": [dataclasses.asdict(entry) for entry in entries], "ready": True}
