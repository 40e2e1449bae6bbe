"""Comparison of a job's rows with those of a prepared folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from ...config.columns import ColumnSection
from ...config.data import DataSection
from ...config.job import Job
from ...errors import JobFileError
from ..files.paths import absolute_path
from .manifest import PATH_KEYS, ROLES, DataRole, HashSettings, PreparedManifest

ROW_KEYS = ("format", "columns", "header", "delimiter", "quote", "encoding", "missing", "decimal", "strip")
"""The keys of [data] that say what a row is."""
CLICK_KEYS = ("dense_features", "categorical_features")
"""Further keys that say what a row is, in jobs without columns."""
SHOWN = 5


def row_settings(data: DataSection) -> dict[str, Any]:
    """Return the settings of [data] that define a row, in plain types."""
    keys = {*ROW_KEYS, *(() if data.columns else CLICK_KEYS)}
    return data.model_dump(mode="json", include=keys)


def role_paths(data: DataSection) -> dict[DataRole, list[str]]:
    """Return the patterns of each role's files, for roles that have any."""
    patterns_of: dict[DataRole, list[str]] = {role: getattr(data, PATH_KEYS[role]) for role in ROLES}
    return {
        role: [absolute_path(pattern) for pattern in paths] for role, paths in patterns_of.items() if paths
    }


def check_agreement(job: Job, manifest: PreparedManifest) -> None:
    """Raise JobFileError, which names differences, unless the job's rows are the folder's."""
    differing = differences(job, manifest)
    if not differing:
        return
    more = f"; and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
    raise JobFileError(
        f"the job differs from the prepared folder: {'; '.join(differing[:SHOWN])}{more}",
        where=f"data.prepared = {job.data.prepared}",
        remedy="remove these keys from the job (the folder's then hold; a table is hashed unless the job says"
        " that it grows), or run shadowsync prepare --force",
    )


def differences(job: Job, manifest: PreparedManifest) -> list[str]:
    """Describe each key in which job and folder differ, with both values."""
    order = manifest.order
    differing = _hash_differences(order.hash)
    mine = row_settings(job.data)
    theirs = _with_defaults(order.data, DataSection, mine)
    columns = mine.pop("columns"), theirs.pop("columns", {})
    differing += [
        f"data.{key} is {mine.get(key)!r}, in the folder {theirs.get(key)!r}"
        for key in dict.fromkeys([*mine, *theirs])
        if mine.get(key) != theirs.get(key)
    ]
    differing += _column_differences(*columns)
    tables = {table.name: table.rows for table in job.tables}
    differing += _growth_differences(job.growing_tables, order.growing)
    differing += [
        f"table {name} has {_rows(tables.get(name))}, in the folder {_rows(order.tables.get(name))}"
        for name in dict.fromkeys([*tables, *order.tables])
        # The keys of a growing table are the same whatever its rows.
        if tables.get(name) != order.tables.get(name) and not (name in tables and name in order.growing)
    ]
    if not differing and list(tables) != list(order.tables):
        differing.append("the tables are in another order than the folder's")
    for role, paths in role_paths(job.data).items():
        their_paths = order.paths.get(role, [])
        # Names only, because the source may be elsewhere on this machine, or no longer exist.
        if sorted(map(_name, paths)) != sorted(map(_name, their_paths)):
            differing.append(f"data.{PATH_KEYS[role]} is {_few(paths)}, in the folder {_few(their_paths)}")
    return differing


def _hash_differences(theirs: HashSettings) -> list[str]:
    ours = HashSettings()
    if (ours.version, ours.seed) == (theirs.version, theirs.seed):
        return []
    return [
        f"ids are hashed by version {ours.version} with seed {ours.seed}, in the folder by version "
        f"{theirs.version} with seed {theirs.seed}"
    ]


def _growth_differences(mine: Sequence[str], theirs: Sequence[str]) -> list[str]:
    return [
        f"table {name} is {_kind(name, mine)}, in the folder {_kind(name, theirs)} (tables.{name}.kind)"
        for name in dict.fromkeys([*mine, *theirs])
        if (name in mine) != (name in theirs)
    ]


def _kind(name: str, growing: Sequence[str]) -> str:
    return "growing" if name in growing else "hashed"


def _with_defaults(
    stated: Mapping[str, Any], section: type[BaseModel], keys: Iterable[str]
) -> dict[str, Any]:
    """Return what a folder states, with defaults for keys newer than the folder."""
    fields = section.model_fields
    absent = {key for key in keys if key not in stated and not fields[key].is_required()}
    return {**{key: fields[key].get_default(call_default_factory=True) for key in absent}, **stated}


def _column_differences(mine: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    differing = []
    for name in dict.fromkeys([*mine, *theirs]):
        if name not in mine or name not in theirs:
            differing.append(f"column {name} is only in the {'job' if name in mine else 'folder'}")
            continue
        column = _with_defaults(theirs[name], ColumnSection, mine[name])
        differing += [
            f"data.columns.{name}.{key} is {value!r}, in the folder {column.get(key)!r}"
            for key, value in mine[name].items()
            # These belong to the model: the rows are the same.
            if key not in ("pooling", "loss_weight") and value != column.get(key)
        ]
    if not differing and list(mine) != list(theirs):
        differing.append("the columns are in another order than the folder's")
    return differing


def _rows(count: int | None) -> str:
    return "no rows" if count is None else f"{count} rows"


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _few(paths: Sequence[str]) -> str:
    return (", ".join(paths[:2]) + (", ..." if len(paths) > 2 else "")) or "none"
