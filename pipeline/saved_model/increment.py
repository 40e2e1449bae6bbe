"""Increments: exports of only the rows that changed since an earlier export.

An export has a version, the digest of its checkpoint. An increment states in its manifest since which version
it has what changed: `{"since": {"version", "examples_trained"}}`. A whole export and the increments since it,
in order, give the whole export of the last one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from ..atomic_file import atomic_folder
from ..checkpoint.saved import Place
from ..errors import DataError, JobFileError
from .exported import EXPORT_MANIFEST, Export, write_export_manifest
from .table_files import TableRows, table_of, write_tables

CHANGE_COUNTS: Final = ("changed_rows", "gone_rows")
"""What only the entry of an increment's table has."""

# What must be equal in all exports of one model, besides the tables' rows and dims.
_SAME: Final = ("data", "hash", "row_rule", "bag_rule")


def merge_exports(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """Write the whole export that a whole one and increments give; return its manifest.

    `folders` are in order. The tables have the format of the first, and are equal to those of a whole export
    of the last one's checkpoint, bit by bit; the dense part is that of the last. Raises DataError (an export
    is damaged, or one in between is missing), JobFileError (they are of different models), ResourceError
    (`out` exists, or cannot be written).
    """
    chain = [Export.open(folder) for folder in folders]
    tables = merged_tables(chain)
    manifest = {key: value for key, value in chain[-1].manifest.items() if key != "since"}
    with atomic_folder(out) as place:
        shutil.copyfile(chain[-1].folder / manifest["dense"]["file"], place / manifest["dense"]["file"])
        written = write_tables(tables, chain[0].table_format, place, whole=True)
        manifest["tables"] = [
            {key: value for key, value in table.items() if key not in CHANGE_COUNTS}
            | {"file": written[table_of(table)]}
            for table in manifest["tables"]
        ]
        write_export_manifest(manifest, place)
    return manifest


def tables_at(export: Export) -> dict[str, TableRows]:
    """Return the whole tables of an export.

    Of an increment, the exports before it must lie beside it, in folders of any name. Raises DataError if one
    is missing or damaged.
    """
    chain = [export]
    while (before := chain[-1].since) is not None:
        chain.append(_before(chain, before))
    return merged_tables(chain[::-1])


def merged_tables(chain: list[Export]) -> dict[str, TableRows]:
    """Return the tables of a whole export with increments applied, in order.

    Raises DataError if the first is not whole, or an increment is not since the one before it.
    """
    whole = chain[0]
    if whole.since is not None:
        raise DataError(
            f"is an increment, since version {whole.since}",
            where=str(whole.folder),
            remedy="begin with a whole export",
        )
    tables = whole.rows()
    for before, increment in pairwise(chain):
        require_same_model(before, increment.manifest, increment.folder)
        if increment.since != before.version:
            raise DataError(
                f"needs version {increment.since} before it; {before.folder} has version {before.version}",
                where=str(increment.folder),
                remedy="give every increment in between, in order",
            )
        for name, changes in increment.rows().items():
            tables[name] = tables[name].with_changes(changes)
    return tables


def require_same_model(base: Export, manifest: Mapping[str, Any], folder: Place) -> None:
    """Raise JobFileError unless an export's manifest describes the same inputs and tables as `base`."""
    for key in _SAME:
        if base.manifest[key] != manifest[key]:
            raise _of_another(base, f"its {key!r} differs", folder)
    shapes = [
        # Of a growing table the rows are how many it has now.
        {
            table["name"]: (table_of(table), table.get("growing", table["rows"]), table["dim"])
            for table in of_export["tables"]
        }
        for of_export in (base.manifest, manifest)
    ]
    if shapes[0] != shapes[1]:
        raise _of_another(base, "its tables differ", folder)


def _of_another(base: Export, how: str, folder: Place) -> JobFileError:
    return JobFileError(
        f"is an export of another model: {how} from {folder}",
        where=str(base.folder),
        remedy="give an export of the same job, or export the whole model",
    )


def _before(chain: Sequence[Export], version: str) -> Export:
    """Open the export of this version that the last of a chain is since.

    Several folders may have the version. An increment of a model that had not changed has the one that it is
    since, so what is in the chain is passed over. So is what is damaged, or has no tables, if another has it.
    """
    candidates, fault = list[tuple[bool, Path]](), None
    passed = {each.folder.resolve() for each in chain}
    for path in chain[0].folder.absolute().parent.glob(f"*/{EXPORT_MANIFEST}"):
        try:
            manifest = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            continue
        # An export of items has no tables, and the version of the model.
        is_model = isinstance(manifest, dict) and "tables" in manifest
        if is_model and manifest.get("version") == version and path.parent.resolve() not in passed:
            candidates.append(("since" in manifest, path.parent))
    for _, folder in sorted(candidates):
        try:
            return Export.open(folder)
        except DataError as error:
            fault = fault or error
    raise fault or DataError(
        f"is an increment since version {version}, which is not beside it",
        where=str(chain[-1].folder),
        remedy="put that export into the same parent folder, or export the whole model",
    )
