"""The keys of a job file that a prepared folder knows: what the file leaves out, the folder says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..data.prepared.manifest import PATH_KEYS, PreparedManifest, read_prepared


def fill_from_prepared(tree: dict[str, Any]) -> PreparedManifest | None:
    """Fills in the sections of a job file, not yet validated, in place; gives the folder's manifest.

    None, and nothing is changed, without `data.prepared`. Raises DataError as `read_prepared`.
    """
    data = tree.get("data")
    if not isinstance(data, dict) or not isinstance(data.get("prepared"), str) or not data["prepared"]:
        return None
    manifest = read_prepared(data["prepared"])
    own_tables = {key: data[key] for key in ("columns", "categorical_features") if key in data}
    for key, value in manifest.order.data.items():
        data.setdefault(key, value)
    for role, paths in manifest.order.paths.items():
        if paths and not _splits(data.get("split"), role):
            data.setdefault(PATH_KEYS[role], paths)
    model = tree.setdefault("model", {})
    if isinstance(model, dict) and "table_rows" not in model and _same_tables(own_tables, manifest):
        rows = list(manifest.order.tables.values())
        model["table_rows"] = rows[0] if len(set(rows)) == 1 else rows
    return manifest


def _splits(split: Any, role: str) -> bool:
    """Whether the job takes this role's rows from those of training."""
    return isinstance(split, dict) and bool(split.get(role) or split.get(f"{role}_from") is not None)


def _same_tables(own: Mapping[str, Any], manifest: PreparedManifest) -> bool:
    """Whether the columns of the job, where it gives any, have the folder's tables in their order."""
    columns = own.get("columns")
    if isinstance(columns, dict):
        kinds = {
            name: value.get("kind") if isinstance(value, dict) else value for name, value in columns.items()
        }
        tables = [name for name, kind in kinds.items() if kind in ("categorical", "multi_hot")]
        return tables == list(manifest.order.tables)
    tables_given: Any = own.get("categorical_features", len(manifest.order.tables))
    return bool(tables_given == len(manifest.order.tables))
