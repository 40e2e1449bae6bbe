"""The job that goes on with a run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from ...pipeline.checkpoint.manifest import open_checkpoint
from ...pipeline.config.job import Job
from ...pipeline.errors import CheckpointError
from ...pipeline.jobfile.load_part import job_of_tree
from ..sync_count import with_sync_nodes


def resumed_job(run_folder: Path, overrides: Iterable[str], which: Literal["last", "best"]) -> Job:
    """The job of a run's folder, to be gone on with from its last or best checkpoint, in a folder beside it.

    Raises CheckpointError if the folder is no run's or has no such checkpoint, JobFileError for overrides
    that cannot be used. What else may differ is checked by the coordinator, see `RestoredRun`.
    """
    folder = run_folder.resolve()
    open_checkpoint(folder, which=which)
    try:
        tree = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"its job.json cannot be read ({error})", where=str(folder), remedy="give the folder of a run"
        ) from error
    own = {"run.directory": str(folder.parent), "start.checkpoint": str(folder), "start.which": which}
    tree.pop("start", None)
    settings = [f"{key}={json.dumps(value)}" for key, value in own.items()]
    return with_sync_nodes(job_of_tree(tree, [*settings, "start.resume=true", *overrides]), may_import=True)
