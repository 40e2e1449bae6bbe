"""A command that reads the checkpoint of a job that still trains."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click


def yield_to_training(run: str) -> None:
    """Lower this process's priority if the job of RUN may train here; say so.

    RUN is the folder of a run, or of a checkpoint in it; a URL says nothing of this machine. Call it on the
    main thread, before others are started. `run.background_priority` = "normal" leaves it as it is.
    """
    from ...pipeline.performance.priority import BACKGROUND_NICE, lower_process

    folder = next((one for one in (Path(run), Path(run).parent) if _trains(one)), None)
    if folder is None or not hasattr(os, "nice"):
        return
    lower_process()
    said = f"{folder} has not ended: this command yields to its training (nice {BACKGROUND_NICE})"
    click.echo(said, err=True)


def _trains(folder: Path) -> bool:
    """Return whether a run has begun and not ended, and wants others to yield."""
    from ...pipeline.report.run_folder import ADDRESS_FILE
    from ...pipeline.report.write import JSON_NAME

    if not (folder / ADDRESS_FILE).is_file() or (folder / JSON_NAME).exists():
        return False
    try:
        section = json.loads((folder / "job.json").read_bytes())["run"]
        return str(section.get("background_priority", "low")) == "low"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # The command itself says what is wrong with the run.
        return False
