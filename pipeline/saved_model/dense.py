"""The dense part of a saved model."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from ..checkpoint.manifest import CheckpointManifest
from ..checkpoint.reader import TensorReader
from ..config.job import Job
from ..errors import CheckpointError
from ..models.registry import build_model

REMEDY = "use the code of the model that it was trained with, or another checkpoint"


def load_dense(folder: Path, manifest: CheckpointManifest, job: Job) -> nn.Module:
    """The dense module with the saved weights, on the CPU, in evaluation mode, without gradients.

    Raises CheckpointError where the checkpoint's parameters are not those of the model, by name and shape;
    JobFileError where the model cannot be made.
    """
    module = build_model(job)
    reader = TensorReader(folder, [entry for entry in manifest.files if entry.role == "dense"])
    _check_names(folder, set(reader.names), {name for name, _ in module.named_parameters()})
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if reader.shape(name) != tuple(parameter.shape):
                raise CheckpointError(
                    f"{name} has the shape {list(reader.shape(name))}, the model's {list(parameter.shape)}",
                    where=str(folder),
                    remedy=REMEDY,
                )
            parameter.copy_(torch.from_numpy(reader.read(name)))
    return module.eval().requires_grad_(False)


def _check_names(folder: Path, saved: set[str], wanted: set[str]) -> None:
    for names, which in ((wanted - saved, "it lacks"), (saved - wanted, "the model has no")):
        if names:
            some = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
            raise CheckpointError(f"is of another model: {which} {some}", where=str(folder), remedy=REMEDY)
