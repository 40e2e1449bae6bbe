"""Patterns in [data.columns]: one entry for many columns of the files.

`"affinity_*" = "dense"` stands for every column of the files with a matching name and without an entry of its
own. Patterns are replaced by names when a job file is loaded, so runs and saved models have only names.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from pydantic import ValidationError

from ..config.columns import suggest
from ..config.data import DataSection
from ..data.files.paths import match_files
from ..data.formats.parquet import column_names
from ..data.formats.schema_check import header_of
from ..errors import JobFileError

_MAGIC: Final = frozenset("*?[")


def expand_by_files(data: Any, where: str) -> None:
    """Replace the patterns of a [data] section by the names of its files' columns.

    `data` is not validated yet, and is changed in place; a wrong one is left unchanged. Only the files of
    `data.path` are read, all of them. Raises JobFileError for a pattern that cannot be used, DataError for
    files that cannot be read.
    """
    columns = data.get("columns") if isinstance(data, dict) else None
    if not isinstance(columns, dict) or not any(map(_is_pattern, columns, columns.values())):
        return
    try:
        section = DataSection.model_validate(data)
    except ValidationError:
        # The validation of the whole job will say what is wrong.
        return
    if not section.header and section.format != "parquet":
        # Columns are found by their place, so a name may have ? and [. Only a star is surely a pattern.
        for name in columns:
            if "*" in name and _is_pattern(name, columns[name]):
                raise JobFileError(
                    f"data.columns.{name}: a pattern given; with data.header = false the files have no names",
                    where=where,
                    remedy="name each column, in the order of the files",
                )
        return
    data["columns"] = expand_patterns(columns, _names_of_files(section), where)


def expand_patterns(columns: Mapping[str, Any], names: Sequence[str], where: str) -> dict[str, Any]:
    """Replace each pattern in [data.columns] by the columns that it matches.

    Returns the new entries. The matching columns take the pattern's place, in the order of `names`, the
    columns of the files. An entry with the exact name of a column wins over a pattern. Raises JobFileError
    for a pattern that matches no column, and for two patterns that match the same one.
    """
    expanded: dict[str, Any] = {}
    pattern_of: dict[str, str] = {}
    for key, value in columns.items():
        if key in names or not _is_pattern(key, value):
            expanded[key] = value
            continue
        fitting = [name for name in dict.fromkeys(names) if name and fnmatchcase(name, key)]
        new = [name for name in fitting if name not in columns]
        if not new:
            why = "only columns that have an entry of their own" if fitting else "no column"
            raise JobFileError(
                f"data.columns.{key}: the pattern matches {why}; {suggest(key, list(names))}", where=where
            )
        for name in new:
            if name in pattern_of:
                raise JobFileError(
                    f"data.columns: the patterns {pattern_of[name]!r} and {key!r} both match column {name!r}",
                    where=where,
                    remedy=f"give {name} an entry of its own, or make one of the patterns narrower",
                )
            pattern_of[name] = key
            expanded[name] = copy.deepcopy(value)
    return expanded


def _is_pattern(name: str, value: Any) -> bool:
    """Return whether an entry may stand for several columns.

    An entry with a `source` never does, whatever its name.
    """
    return bool(_MAGIC & set(name)) and not (isinstance(value, dict) and value.get("source"))


def _names_of_files(data: DataSection) -> list[str]:
    names: dict[str, None] = {}
    for path in match_files(data.path, data.kafka):
        in_file: Iterable[str] = column_names(path) if data.format == "parquet" else header_of(path, data)
        names |= dict.fromkeys(in_file)
    return list(names)
