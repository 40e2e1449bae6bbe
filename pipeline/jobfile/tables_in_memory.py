"""Tables in memory as the input of a job: they are written as Parquet beside its runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ..atomic_file import atomic_file, unwritable
from ..errors import DataError, JobFileError

KEYS: Final = (
    ("data", "path"),
    ("data", "validation_path"),
    ("data", "eval_path"),
    ("validation", "items"),
)
"""Where a job may have a table, by section and key."""
FOLDER: Final = "data"
# Rows that one reader reads at a time, as in generated files.
_ROWS_OF_GROUP: Final = 65_536


def arrow_table(frame: Any, where: str) -> pa.Table:
    """Return a table of pandas, polars or pyarrow, or a dict of columns, as one of pyarrow.

    Raises DataError, about `where`, for what is no table.
    """
    try:
        return pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise no_table(error, where) from error


def no_table(error: Exception, where: str) -> DataError:
    """Build the error for what does not form a table."""
    return DataError(
        f"do not form a table ({error})",
        where=where,
        remedy="give columns of equal length, each with values of one type",
    )


def with_written_tables(tree: Mapping[str, Any], overrides: Iterable[str]) -> Mapping[str, Any]:
    """Write the tables in a job's `KEYS`; name the files there.

    They are in `run.directory`/data, named by their content, so that a resumed run finds them, and the same
    table is written once. Without one, returns `tree` itself. Raises DataError for what is no table,
    JobFileError for another `data.format` than "parquet", ResourceError if a file cannot be written.
    """
    tables: dict[tuple[str, str], Any] = {}
    for section, key in KEYS:
        value = values.get(key) if isinstance(values := tree.get(section), Mapping) else None
        if isinstance(value, list | tuple) and any(map(_is_table, value)):
            remedy = "give one table: join them first"
            raise DataError("a list with tables given", where=f"{section}.{key}", remedy=remedy)
        if _is_table(value):
            tables[section, key] = value
    data = tree.get("data")
    if not tables or not isinstance(data, Mapping):
        return tree
    if data.get("format", "parquet") != "parquet":
        raise JobFileError(
            f"{data['format']!r} given, and {', '.join(map('.'.join, tables))} in memory",
            where="data.format",
            remedy='leave it out, or give "parquet": tables in memory are written as Parquet',
        )
    folder = _directory(tree, overrides) / FOLDER
    written = {**tree, "data": {"format": "parquet", **data}}
    for (section, key), table in tables.items():
        path = str(_write(arrow_table(table, f"{section}.{key}"), folder))
        written[section] = {**written[section], key: path}
    return written


def _is_table(value: Any) -> bool:
    # Paths are texts and lists of texts; each of these packages has tables with names of columns.
    return hasattr(value, "columns") or hasattr(value, "column_names")


def _directory(tree: Mapping[str, Any], overrides: Iterable[str]) -> Path:
    run = tree.get("run")
    directory = str(run.get("directory", "runs")) if isinstance(run, Mapping) else "runs"
    for text in overrides:
        key, _, value = text.partition("=")
        if key.strip() == "run.directory":
            directory = value.strip().strip("\"'")
    return Path(directory).absolute()


def _write(table: pa.Table, folder: Path) -> Path:
    digest = hashlib.sha256(table.schema.remove_metadata().serialize())
    for batch in table.combine_chunks().to_batches():
        digest.update(batch.serialize())
    path = folder / f"{digest.hexdigest()[:16]}.parquet"
    if not path.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from error
        with atomic_file(path) as file:
            pq.write_table(table, file, row_group_size=_ROWS_OF_GROUP)
    return path
