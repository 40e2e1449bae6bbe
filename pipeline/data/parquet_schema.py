"""Whether a Parquet file has the columns of a schema, and of which types they are."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from ..config.data import ColumnSection, suggest
from ..errors import DataError
from .arrow_columns import is_number, is_text, plain_type
from .id_classes import IdClasses
from .record_schema import RecordSchema

PREPARED_KEY: Final = b"shadowsync.order"
"""In the metadata of each part that `shadowsync prepare` wrote: whose it is."""
_REMEDY = "name the columns of [data.columns] as the file does, or change their kinds"


def check_raw(path: str, arrow: Any) -> None:
    """Raises DataError for a part of a prepared folder: its values would be hashed and transformed again."""
    if PREPARED_KEY in (arrow.metadata or {}):
        raise DataError(
            "is a part of a prepared folder, hashed and transformed already",
            where=path,
            remedy="give its folder as data.prepared; to score, give the files that it was made of",
        )


def check_parquet(path: str, arrow: Any, schema: RecordSchema, ids: IdClasses | None = None) -> None:
    """Raises DataError for a column that the file does not have once, or has in a type that does not fit;
    with `ids`, which it tells of this file, also for ids of another class than in an earlier one."""
    for name, column in schema.data.columns.items():
        if column.kind == "ignored":
            continue
        source = schema.source_of(name)
        if arrow.names.count(source) != 1:
            times = "no" if source not in arrow.names else f"{arrow.names.count(source)} times"
            raise DataError(
                f"has {times} column {source!r}; {suggest(source, arrow.names)}", where=path, remedy=_REMEDY
            )
        kind = plain_type(arrow.field(source).type)
        fits, wanted = _fits(kind, column)
        if not (fits or pa.types.is_null(kind)):
            raise DataError(
                f"column {source} holds {kind}; {name} needs {wanted}", where=path, remedy=_REMEDY
            )
        if ids is not None and column.kind in ("categorical", "multi_hot"):
            ids.note(path, name, kind)


def _fits(kind: pa.DataType, column: ColumnSection) -> tuple[bool, str]:
    if column.kind == "categorical":
        return is_text(kind) or pa.types.is_integer(kind), "texts or integers"
    if column.kind == "multi_hot":
        lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        inner = plain_type(kind.value_type) if lists else kind
        fits = is_text(inner) or (lists and (pa.types.is_integer(inner) or pa.types.is_null(inner)))
        return fits, "lists of texts or integers, or delimited texts"
    if column.kind == "timestamp" or column.transform == "time":
        fits = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        return fits or is_number(kind) or is_text(kind), "times, dates, numbers or texts"
    return is_number(kind) or is_text(kind), "numbers, or texts that are numbers"
