"""A trainer's files of a checkpoint."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from ..pipeline.checkpoint.files import write_tensors
from ..sync_algos.base import AlgorithmState
from .replica import Shared


def write_trainer(
    directory: Path,
    index: int,
    shared: Shared,
    *,
    dense: torch.Tensor | None,
    origin: str,
    state: AlgorithmState | None,
) -> dict[str, Any]:
    """Writes trainer `index`'s replica and optimizer state and, if given, `dense`, the model that comes out
    of the run (float32 [numel]), by parameter name, and the algorithm's state. `origin` is part of the
    model's file name, since a second one may be asked for while the first is still put together. Any thread
    may call, while no worker trains. Gives `{"files": [...], "ready": True}`.
    """
    name = f"trainer-{index}"
    moments = {f"optimizer.{key}": value.numpy() for key, value in shared.optimizer.state.items()}
    tensors = {"replica": shared.replica.flat.numpy(), **moments}
    metadata = {"role": name, "iterations": ",".join(map(str, shared.iterations))}
    entries = write_tensors(directory, name, tensors, metadata)
    if dense is not None:
        named = {span.name: view.numpy() for span, view in shared.layout.views(dense)}
        entries += write_tensors(directory, f"dense-{origin}", named, {"role": "dense"})
    if state is not None and state.tensors:
        own = {key: value.numpy() for key, value in state.tensors.items()}
        metadata = {"role": "algorithm", "completed_rounds": str(state.completed_rounds)}
        entries += write_tensors(directory, "algorithm", own, metadata)
    return {"files": [dataclasses.asdict(entry) for entry in entries], "ready": True}
