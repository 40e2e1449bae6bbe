"""The folder of an export: its manifest, and its tables read again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ..atomic_file import sha256_of
from ..errors import DataError
from .table_files import TableRows, read_tables

EXPORT_MANIFEST: Final = "manifest.json"
VERSION_DIGITS: Final = 16


@dataclass(frozen=True)
class Export:
    """An export in a folder, whole or an increment."""

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, folder: Path) -> Export:
        """Open an export; its files have the sizes and digests that its manifest states.

        Raises DataError if there is none, it is damaged, of before increments, or has no tables.
        """
        try:
            manifest = json.loads((folder / EXPORT_MANIFEST).read_text("utf-8"))
            version, tables = manifest.get("version"), manifest["tables"]
            damaged = [entry["name"] for entry in manifest["files"] if not is_whole(folder, entry)]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(
                f"has no manifest of an export ({error})",
                where=str(folder),
                remedy="give a folder that shadowsync export wrote",
            ) from error
        if version is None:
            raise DataError(
                "was written before exports had a version", where=str(folder), remedy="export it again, whole"
            )
        if damaged:
            raise DataError(
                f"{damaged[0]} is missing or altered", where=str(folder), remedy="export it again, whole"
            )
        if any(table["file"] is None for table in tables):
            raise DataError("has no tables", where=str(folder), remedy="export them too: --tables parquet")
        return cls(folder, manifest)

    @property
    def version(self) -> str:
        return str(self.manifest["version"])

    @property
    def since(self) -> str | None:
        """The version that an increment changes; None for a whole export."""
        since = self.manifest.get("since")
        return None if since is None else str(since["version"])

    @property
    def table_format(self) -> Literal["parquet", "safetensors"]:
        files = (table["file"] for table in self.manifest["tables"])
        return "parquet" if all(file.endswith(".parquet") for file in files) else "safetensors"

    def reference(self) -> dict[str, Any]:
        """Return how an increment since this export names it."""
        return {key: self.manifest[key] for key in ("version", "examples_trained")}

    def rows(self) -> dict[str, TableRows]:
        """Read its tables; raises DataError."""
        try:
            return read_tables(self.folder, self.manifest["tables"])
        except (OSError, ValueError, LookupError) as error:
            raise DataError(f"its tables cannot be read ({error})", where=str(self.folder)) from error


def write_export_manifest(manifest: dict[str, Any], folder: Path) -> None:
    """Add the list of files to an export's manifest, and write it; raises OSError."""
    manifest["files"] = [
        {"name": file.name, "bytes": file.stat().st_size, "sha256": sha256_of(file)}
        for file in sorted(folder.iterdir())
    ]
    text = json.dumps(manifest, indent=1, allow_nan=False)
    (folder / EXPORT_MANIFEST).write_text(text + "\n", encoding="utf-8")


def is_whole(folder: Path, entry: Mapping[str, Any]) -> bool:
    path = folder / entry["name"]
    if not path.is_file() or path.stat().st_size != entry["bytes"]:
        return False
    return sha256_of(path) == str(entry["sha256"])
