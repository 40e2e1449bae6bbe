"""The job of attached loops: the sections that they share with jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ..nodes.sync_rules import check_sync, with_sync_nodes
from ..pipeline.config.job import Job
from ..pipeline.errors import JobFileError
from ..pipeline.jobfile.load import job_of_tree
from .errors import AttachError

SECTIONS: Final = ("run", "sync", "codecs", "embedding", "watch")
# Loops come and go at any pace, and a center waits for none of them.
DEFAULT_ALGORITHM: Final = "easgd"
# Loops have their own data and models: no node of a hub reads these sections, which a job must have.
_UNREAD: Final[dict[str, dict[str, Any]]] = {
    "data": {"format": "criteo_tsv", "path": ["-"], "dense_features": 0, "categorical_features": 1},
    "trainer": {"workers": 1},
}


def loop_job(settings: Mapping[str, Any], overrides: Iterable[str] = ()) -> Job:
    """Return the job of a hub, from settings by key and `--set` texts.

    Imports the algorithm. Raises JobFileError for what cannot work.
    """
    texts = tuple(overrides)
    for key in (*settings, *(text.partition("=")[0].strip() for text in texts)):
        if key.partition(".")[0] not in SECTIONS:
            raise JobFileError(
                "is no setting of attached loops", where=key, remedy=f"give one of {', '.join(SECTIONS)}"
            )
    tree: dict[str, Any] = {name: dict(section) for name, section in _UNREAD.items()}
    tree |= {"run": {"name": "hub"}, "sync": {"algorithm": DEFAULT_ALGORITHM}}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        tree.setdefault(section, {})[name] = value
    job = with_sync_nodes(job_of_tree(tree, texts), may_import=True)
    if job.sync.optimizer_state != "own":
        raise JobFileError(
            '"synchronized" given; the state of a loop\'s optimizer stays its own',
            where="sync.optimizer_state",
            remedy="leave it out",
        )
    check_sync(job)
    return job


def require_settings(job: Job, settings: Mapping[str, Any]) -> None:
    """Raise AttachError if a loop wants another setting than the hub has."""
    tree = job.model_dump(mode="json")
    for key, value in settings.items():
        section, _, name = key.partition(".")
        of_hub = tree.get(section, {}).get(name)
        if of_hub != value:
            raise AttachError(
                f"the loop wants {value!r}, and the hub has {of_hub!r}",
                where=key,
                remedy="leave it out of attach, or start the hub with it",
            )
