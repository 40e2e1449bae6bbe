"""What a run that was stopped says of how to go on. Imports no torch, as the coordinator says it too."""

from __future__ import annotations

from pathlib import Path

from ..checkpoint.manifest import open_checkpoint
from ..errors import CheckpointError
from .run_folder import shown


def resume_hint(run_folder: Path) -> str:
    """How to go on with a run that was stopped, in words that follow others; "" if it has no checkpoint."""
    try:
        open_checkpoint(run_folder)
    except CheckpointError:
        return ""
    return f"; go on from its last checkpoint with `shadowsync resume {shown(run_folder)}`"
