"""Rows of requests, as columns; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

from ..pipeline.config.columns import suggest
from ..pipeline.saved_model.input_rows import InputSchema

_KEYS: Final = frozenset({"rows", "columns", "context"})


class BadRequest(ValueError):
    """A request that cannot be scored; the text says why."""


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The rows of one request, column by column.

    Attributes:
        count: number of rows.
        columns: values of each column that the model needs, by the column's name in files; None is missing.
        shared: the value of each such column that all rows share, which is not among `columns`.
    """

    count: int
    columns: Mapping[str, Sequence[Any]]
    shared: Mapping[str, Any] = field(default_factory=dict)


def columns_of_request(
    body: Any, schema: InputSchema, most_rows: int, further: Set[str] = frozenset()
) -> RowColumns:
    """Return the rows of a request's JSON body.

    The body is {"rows": [{COLUMN: VALUE, ...}, ...]} or {"columns": {COLUMN: [VALUE, ...], ...}}, and may
    have {"context": {COLUMN: VALUE, ...}} with the columns whose value all rows share, and `further` keys,
    which the caller reads. Columns that only training needs, such as the label, may be there. Raises
    BadRequest for anything else, for unknown and for missing columns, and for more than `most_rows` rows.
    """
    if not isinstance(body, dict) or (("rows" in body) == ("columns" in body)):
        raise BadRequest('give an object with "rows" or "columns"')
    known = _KEYS | further
    if unknown := sorted(body.keys() - known):
        names = f"{', '.join(map(repr, unknown[:5]))} {'is' if len(unknown) == 1 else 'are'}"
        raise BadRequest(f"{names} not known here; there are {', '.join(sorted(known))}")
    context = body.get("context", {})
    if not isinstance(context, dict):
        raise BadRequest("context: give an object with the value of each column that all rows share")
    if "columns" in body:
        count, columns = _from_columns(body["columns"], context, schema, most_rows)
    else:
        count, columns = _from_rows(body["rows"], context, schema, most_rows)
    shared = {name: context[name] for name in schema.read.sources if name in context}
    return RowColumns(count, columns, shared)


def _from_rows(
    rows: Any, context: Mapping[str, Any], schema: InputSchema, most_rows: int
) -> tuple[int, dict[str, Sequence[Any]]]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadRequest("rows: give a list of objects, one for each row")
    _check_count(len(rows), most_rows)
    _check_names(set().union(*rows), context.keys(), schema)
    sources = _sources_beside(context, schema)
    if not sources:
        return len(rows), {}
    # A getter of one name returns the value itself, not a tuple.
    values_of = itemgetter(*sources)
    try:
        values = [*map(values_of, rows)]
    except KeyError:
        number, name = next(
            (number, name) for name in sources for number, row in enumerate(rows) if name not in row
        )
        raise BadRequest(
            f"rows[{number}] has no column {name!r}; give null where the value is missing"
        ) from None
    return len(rows), {sources[0]: values} if len(sources) == 1 else dict(
        zip(sources, zip(*values, strict=True), strict=True)
    )


def _from_columns(
    columns: Any, context: Mapping[str, Any], schema: InputSchema, most_rows: int
) -> tuple[int, dict[str, Sequence[Any]]]:
    if not isinstance(columns, dict) or not all(isinstance(values, list) for values in columns.values()):
        raise BadRequest("columns: give an object with a list of values for each column")
    _check_names(columns.keys(), context.keys(), schema)
    sources = _sources_beside(context, schema)
    for name in sources:
        if name not in columns:
            raise BadRequest(f"columns: no column {name!r}; give nulls where values are missing")
    counts = {len(values) for values in columns.values()}
    if len(counts) > 1:
        raise BadRequest(f"columns: lists of {min(counts)} to {max(counts)} values; give as many for each")
    count = counts.pop() if counts else 0
    _check_count(count, most_rows)
    return count, {name: columns[name] for name in sources}


def _sources_beside(context: Mapping[str, Any], schema: InputSchema) -> list[str]:
    return [name for name in schema.read.sources if name not in context]


def _check_count(count: int, most_rows: int) -> None:
    """Raise BadRequest unless a request has 1 to `most_rows` rows."""
    if not count:
        raise BadRequest("no rows; give at least one")
    if count > most_rows:
        raise BadRequest(f"{count:,} rows; give at most {most_rows:,} at once")


def _check_names(names: Set[str], shared: Set[str], schema: InputSchema) -> None:
    """Raise BadRequest for a column that is given twice or unknown."""
    if twice := names & shared:
        raise BadRequest(f"column {min(twice)!r} is in the context and in the rows; give it once")
    for group in (names, shared):
        if unknown := group - schema.known_sources:
            name = min(unknown)
            raise BadRequest(f"there is no column {name!r}; {suggest(name, schema.read.sources)}")
