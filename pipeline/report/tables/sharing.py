"""How many examples have ids that share rows, in a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import Field

from ...text.format import percent
from ...text.markdown import markdown_table
from ...types import ResultModel

WARNED_SHARE: Final = 0.03
"""Of the ids of a table: above it a report warns."""
_NAMED_TABLES: Final = 3

Share = Annotated[float, Field(ge=0, le=1)]


class SharedRows(ResultModel):
    """Shares of ids in a row of several, which learn as one.

    The readers of training measure them: which rows several ids have from all ids, who has such a row from a
    sample of some ten thousand examples. Each reader knows only the ids that it read.

    Attributes:
        examples: share of the examples with such an id, by the columns of one id an example; 0 if no table is
            hashed, null if it is not known, as with prepared input.
        tables: share of the ids of each hashed table.
    """

    examples: Share | None
    tables: dict[str, Share] = Field(default={})


def shared_rows(rows: Mapping[str, int], readers: Sequence[Mapping[str, Any]]) -> SharedRows:
    """Return the mean of the readers' last counts, weighted by examples.

    `rows` are those of the hashed tables.
    """
    if not rows:
        return SharedRows(examples=0.0)
    counts = [reader for reader in readers if reader.get("sharing_seen")]
    seen = sum(float(reader["sharing_seen"]) for reader in counts)
    if not seen:
        return SharedRows(examples=None)

    def mean(key: str) -> float:
        weighted = [float(reader["sharing_seen"] * reader.get(key, 0.0)) for reader in counts]
        return min(1.0, sum(weighted) / seen)

    return SharedRows(
        examples=mean("sharing_examples"), tables={name: mean(f"shared_rows/{name}") for name in rows}
    )


def sharing_warnings(shared: SharedRows, rows: Mapping[str, int]) -> list[str]:
    """Return a warning if many ids of a table share a row.

    `rows` are those of the hashed tables.
    """
    many = [name for name in _worst_first(shared) if shared.tables[name] > WARNED_SHARE]
    if not many:
        return []
    parts = [f"{percent(shared.tables[name], 1)} of {name} ({rows[name]} rows)" for name in many]
    others = f", and {len(many) - _NAMED_TABLES} more tables" if len(many) > _NAMED_TABLES else ""
    return [
        f"Different ids share rows, and learn as one: {', '.join(parts[:_NAMED_TABLES])}{others}, counted by"
        f' example. Set tables.{many[0]}.kind = "growing", by which each id has a row of its own, or rows to'
        " 32 times the number of its values (docs/models.md)."
    ]


def sharing_section(shared: SharedRows | None) -> list[list[str]]:
    """Build the section of report.md."""
    if shared is None:
        return []
    head = "## Ids that share rows"
    if shared.examples is None:
        return [[head, "", "Not measured: the readers saw no hash of an id, as with prepared input."]]
    if not shared.tables:
        return [[head, "", "None: each id has a row of its own."]]
    rows = [("examples with such an id", percent(shared.examples, 1))]
    rows += [(f"ids of {name}, by example", percent(shared.tables[name], 1)) for name in _worst_first(shared)]
    note = "Estimated by the readers, each from what it read, for hashed tables; growing tables have none."
    return [[head, "", *markdown_table(("what", "share"), rows), "", note]]


def _worst_first(shared: SharedRows) -> list[str]:
    return sorted(shared.tables, key=lambda name: -shared.tables[name])
