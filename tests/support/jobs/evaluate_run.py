"""The quality of a run's saved model on files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shadowsync.pipeline.checkpoint.manifest import Which
from shadowsync.pipeline.saved_model.evaluate import evaluate_model
from shadowsync.pipeline.saved_model.model import SavedModel


def evaluate_run(run_folder: Path, patterns: list[str], which: Which = "auto") -> dict[str, Any]:
    """Opens the model and evaluates it; raises what these raise."""
    return evaluate_model(SavedModel.open(run_folder, which), patterns)
