"""The folder of a hub: its settings, and the address that `shadowsync top` asks."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ...pipeline.atomic_file import unwritable
from ...pipeline.config.job import Job
from ...pipeline.errors import JobFileError
from ...pipeline.report.run_folder import ADDRESS_FILE, create_run_folder, point_latest, write_address

HUB_FILE: Final = "hub.json"


def make_hub_folder(job: Job, given: Path | None) -> Path:
    """Create the folder of a new hub, with its settings.

    By default it is runs/hub, or runs/hub-2 and so on, to which runs/latest then points. Raises JobFileError
    for a given folder that is not empty, ResourceError if it cannot be made.
    """
    if given is None:
        root = Path(job.run.directory)
        folder = create_run_folder(root, job.run.name)
        point_latest(root, folder)
    else:
        folder = given
        try:
            folder.mkdir(parents=True, exist_ok=True)
            filled = any(folder.iterdir())
        except OSError as error:
            raise unwritable(folder, error) from error
        if filled:
            raise JobFileError(
                "is a folder with files in it", where=str(folder), remedy="give a new or empty one to --dir"
            )
    (folder / HUB_FILE).write_text(job.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return folder


def announce(folder: Path, endpoint: str) -> None:
    """Write the address to join into the folder, where `shadowsync top` looks for it."""
    write_address(folder / ADDRESS_FILE, endpoint, folder)
