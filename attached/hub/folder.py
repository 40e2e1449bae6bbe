"""The folder of a hub: its settings, and the address that `shadowsync top` asks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Final

from ...nodes.runtime.settings import NodeSettings
from ...pipeline.atomic_file import unwritable, write_text
from ...pipeline.errors import ClusterError, JobFileError
from ...pipeline.jobfile.load import validate_saved_job
from ...pipeline.report.run_folders.run_folder import (
    ADDRESS_FILE,
    create_run_folder,
    point_latest,
    write_address,
)

HUB_FILE: Final = "hub.json"


def make_hub_folder(settings: NodeSettings, chosen: Path | None, resume: Path | None = None) -> NodeSettings:
    """Create the folder of a new hub; return its settings, with the folder.

    By default it is runs/hub, or runs/hub-2 and so on, to which runs/latest then points. Raises JobFileError
    for a given folder that is not empty, ResourceError if it cannot be made.
    """
    job = settings.job
    if chosen is None:
        root = Path(job.run.directory)
        folder = create_run_folder(root, job.run.name)
        point_latest(root, folder)
    else:
        folder = chosen
        try:
            folder.mkdir(parents=True, exist_ok=True)
            filled = any(folder.iterdir())
        except OSError as error:
            raise unwritable(folder, error) from error
        if filled:
            raise JobFileError(
                "is a folder with files in it", where=str(folder), remedy="give a new or empty one to --dir"
            )
    saved = {
        "job": job.model_dump(mode="json"),
        "bind": settings.bind,
        "advertise": settings.advertise,
        "metrics_port": settings.metrics_port,
        "resume": str(resume.absolute()) if resume is not None else "",
    }
    write_text(folder / HUB_FILE, json.dumps(saved, indent=1) + "\n")
    return replace(settings, folder=folder)


def saved_settings(folder: Path) -> tuple[NodeSettings, Path | None]:
    """Return a hub's settings, to take its place, and what it resumed.

    Raises ClusterError for a folder without any, JobFileError for those of another version.
    """
    path = folder / HUB_FILE
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        job = validate_saved_job(saved["job"], where=str(path))
        more = {name: saved[name] for name in ("bind", "advertise", "metrics_port")}
        resume = Path(saved["resume"]) if saved["resume"] else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            "is not the folder of a hub", where=str(folder), remedy="give that of --dir, such as runs/hub"
        ) from error
    return NodeSettings(job, folder=folder, recover=folder, **more), resume


def announce(folder: Path, endpoint: str) -> None:
    """Write the address to join into the folder, where `shadowsync top` looks for it."""
    write_address(folder / ADDRESS_FILE, endpoint, folder)
