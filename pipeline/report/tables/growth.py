"""Growing tables in a report: rows in use, admission, eviction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, NonNegativeInt

from ...config.tables import TableSettings
from ...text.format import count
from ...text.markdown import markdown_table
from ...types import ResultModel


class GrowingTable(ResultModel):
    """What became of a growing table's rows, over all embedding nodes, since these started.

    Attributes:
        rows: rows with an id.
        most_rows: most rows that the table may have.
        admitted: how often an id got a row.
        evicted: how often an id lost its row.
        refused: how often a batch had an id that was due for a row when none was free.
        evict: what the job says about full tables.
        columns: the columns whose ids have its rows.
    """

    name: str
    rows: NonNegativeInt
    most_rows: NonNegativeInt
    admitted: NonNegativeInt
    evicted: NonNegativeInt
    refused: NonNegativeInt
    evict: str
    columns: list[str] = Field(default=[])

    @property
    def shown_name(self) -> str:
        """Return its name, with its columns if it has several."""
        return f"{self.name} ({', '.join(self.columns)})" if len(self.columns) > 1 else self.name

    @property
    def rows_text(self) -> str:
        """Say how many rows are in use."""
        return f"{count(self.rows)} of {count(self.most_rows)}"


def growing_tables(
    tables: Sequence[TableSettings], shards: Mapping[str, Mapping[str, Any]]
) -> list[GrowingTable]:
    """Add up the embedding nodes' last counts; tables without any are left out."""
    growths = []
    for table in tables:
        if table.growth is None:
            continue
        counts = {
            what: [
                int(shard[key])
                for shard in shards.values()
                if (key := f"growing/{what}/{table.name}") in shard
            ]
            for what in ("rows", "admitted", "evicted", "refused")
        }
        if counts["rows"]:
            sums = {what: sum(values) for what, values in counts.items()}
            growths.append(
                GrowingTable(
                    name=table.name,
                    most_rows=table.rows,
                    evict=table.growth.evict,
                    columns=[column.name for column in table.columns],
                    **sums,
                )
            )
    return growths


def growth_warnings(tables: Sequence[GrowingTable]) -> list[str]:
    """Return a warning for each table that had no row for new ids."""
    return [
        f"Table {table.name} was full: {count(table.refused)} times an id of a batch got no row and learned"
        f" nothing. {_remedy(table)}."
        for table in tables
        if table.refused
    ]


def growth_section(tables: Sequence[GrowingTable]) -> list[list[str]]:
    """Build the section of report.md; empty without growing tables."""
    if not tables:
        return []
    rows = [
        (
            table.shown_name,
            table.rows_text,
            count(table.admitted),
            count(table.evicted),
            count(table.refused),
        )
        for table in tables
    ]
    head = ("table", "rows in use", "ids that got a row", "ids that lost it", "ids refused, by batch")
    note = "Counts are those of the embedding nodes since they started."
    return [["## Growing tables", "", *markdown_table(head, rows), "", note]]


def _remedy(table: GrowingTable) -> str:
    more = f"Raise tables.{table.name}.rows ({table.most_rows})"
    if table.evict == "never":
        return f'{more}, or set tables.{table.name}.evict = "least_recent"'
    return f"{more} above the number of ids in a batch of all embedding nodes, or lower trainer.batch"
