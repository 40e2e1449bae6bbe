"""The last few checkpoints of a run, each as RUN/step-N, with N the examples that it had trained.

Their files are hard links, as those of the best checkpoint.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from .best import copy_checkpoint
from .manifest import MANIFEST_NAME, kept_name, step_of


def keep(checkpoint: Path, examples: int, most: int) -> None:
    """Link RUN/checkpoint as RUN/step-N, and remove all such folders but the newest `most`.

    Only one thread of one process may call at a time. Raises ResourceError.
    """
    run = checkpoint.parent
    copy_checkpoint(checkpoint, run / kept_name(examples))
    steps = {path: step_of(path.name) for path in run.iterdir()}
    found = {path: step for path, step in steps.items() if step is not None}
    # One without its manifest was begun by a process that has died.
    whole = [path for path in found if (path / MANIFEST_NAME).is_file()]
    newest = sorted(whole, key=lambda path: found[path])[-most:]
    for path in found:
        if path not in newest:
            shutil.rmtree(path, ignore_errors=True)
