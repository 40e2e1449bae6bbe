"""The job of the tables that modules share: what its embedding nodes read.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..pipeline.config.job import Job
from ..pipeline.errors import JobFileError
from ..pipeline.jobfile.load import job_of_tree
from .errors import AttachError

# What a module may say about a table; the rest is the hub's [embedding].
TABLE_KEYS: Final = ("rows", "dim", "optimizer", "lr", "weight_decay", "init_scale", "storage")
MAX_TABLES: Final = 512
# Of any length: a module may ask for as many rows at once as it likes.
_LISTS: Final = {"kind": "multi_hot", "pooling": "none", "max_ids": 100_000}
# Characters of patterns of column names.
_PATTERN: Final = frozenset("*?[")


# The passes of a module are the batches of this epoch, and of a span that is the module's index.
EPOCH: Final = 0


def settings_of(job: Job) -> dict[str, dict[str, Any]]:
    """Return the settings of a job's tables as a module gives them, by table."""
    return {table.name: {key: getattr(table, key) for key in TABLE_KEYS} for table in job.tables}


def tables_job(
    hub: Job, tables: Mapping[str, Any], start: Path | None = None, *, goes_on: bool = False
) -> Job:
    """Return the job whose tables are those that a module wants.

    A module asks for distinct rows, so each table is one of lists that nodes do not pool.

    Args:
        hub: the job of the hub, whose [run], [codecs] and [embedding] hold.
        tables: settings by key, by table.
        start: folder of the checkpoint whose rows the nodes begin with.
        goes_on: whether it is of the same modules, whose passes it has are not applied again.

    Raises:
        JobFileError: a table or a setting that cannot be.
    """
    _check(tables)
    label = "label"
    while label in tables:
        label += "_"
    saved = hub.model_dump(mode="json")
    tree = {
        "run": saved["run"],
        "codecs": saved["codecs"],
        "embedding": saved["embedding"],
        # No node of the tables reads the rest, which a job must have.
        "data": {
            "format": "csv",
            "path": ["-"],
            "columns": {label: "label"} | {name: dict(_LISTS) for name in tables},
        },
        "trainer": {"workers": 1},
        "sync": {"algorithm": "none"},
        "tables": {name: dict(settings) for name, settings in tables.items()},
    }
    if start is not None:
        tree["start"] = {"checkpoint": str(start), "resume": goes_on}
    return job_of_tree(tree)


def _check(tables: Mapping[str, Any]) -> None:
    """Raise JobFileError for what is not settings by table."""
    if not tables or len(tables) > MAX_TABLES:
        raise JobFileError(f"{len(tables)} tables given; give 1 to {MAX_TABLES}", where="tables")
    for name, settings in tables.items():
        if not name or _PATTERN & set(name):
            raise JobFileError(f"{name!r} cannot be the name of a table", where="tables")
        if not isinstance(settings, Mapping) or "rows" not in settings or set(settings) - set(TABLE_KEYS):
            raise JobFileError(
                f"the settings are {settings!r}", where=f"tables.{name}", remedy="give the number of rows"
            )


def require_tables(job: Job, tables: Mapping[str, Any], first: str) -> None:
    """Raise AttachError, which names the setting, if a module wants other tables.

    `first` is the name of the module that decided what the tables are. Raises JobFileError for what cannot be
    a table at all.
    """
    _check(tables)
    known = {table.name: table for table in job.tables}
    for name in tables:
        if name not in known:
            raise AttachError(
                f"the module wants a table {name!r}, and those of {first} are {', '.join(known)}",
                where="tables",
                remedy="give all modules the same tables, or another hub",
            )
    for name, table in known.items():
        if name not in tables:
            raise AttachError(
                f"the module has no table {name!r}, and {first} has", where="tables", remedy="give it, too"
            )
        for key, value in tables[name].items():
            known_value = getattr(table, key)
            if known_value != value:
                raise AttachError(
                    f"the module wants {value!r}, and the table of {first} has {known_value!r}",
                    where=f"tables.{name}.{key}",
                    remedy="give the same, or leave it out",
                )
