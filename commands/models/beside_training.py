"""A command that reads the checkpoint of a job that still trains."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import click

_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")
"""What torch, PyArrow and polars take the number of their threads from, as they are imported."""


def yield_to_training(run: str) -> None:
    """Lower this process's priority if the job of RUN may train here; say so.

    For work that grows with what the user gives. RUN is the folder of a run, or of a checkpoint in it; a URL
    says nothing of this machine. Call it on the main thread, before others are started.
    `run.background_priority` = "normal" leaves it as it is.
    """
    from ...pipeline.performance.priority import BACKGROUND_NICE, lower_process

    folder = _training_run(run)
    if folder is None or not hasattr(os, "nice"):
        return
    lower_process()
    said = f"{folder} has not ended: this command yields to its training (nice {BACKGROUND_NICE})"
    click.echo(said, err=True)


def keep_to_one_core(run: str) -> None:
    """Keep this process to one core if the job of RUN may train here.

    It says so. For an export, which somebody waits for, and whose work is bounded by the model: a lower
    priority would starve it on a busy machine. Numbers of threads that the user set stay. RUN as in
    `yield_to_training`; call it before torch is imported.
    """
    folder = _training_run(run)
    if folder is None:
        return
    for name in _THREADS:
        os.environ.setdefault(name, "1")
    said = (
        f"{folder} has not ended: this command takes one core at most; under `nice` it yields to the training"
    )
    click.echo(said, err=True)


def _training_run(run: str) -> Path | None:
    """Return the folder of the run if it trains and wants others to yield."""
    return next((folder for folder in (Path(run), Path(run).parent) if _trains(folder)), None)


def _trains(folder: Path) -> bool:
    """Return whether a run has begun and not ended, and wants others to yield."""
    from ...pipeline.report.run_folders.run_folder import ADDRESS_FILE
    from ...pipeline.report.run_folders.write import JSON_NAME

    if not (folder / ADDRESS_FILE).is_file() or (folder / JSON_NAME).exists():
        return False
    try:
        section = json.loads((folder / "job.json").read_bytes())["run"]
        return str(section.get("background_priority", "low")) == "low"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # The command itself says what is wrong with the run.
        return False
