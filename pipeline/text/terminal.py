"""Tables on a terminal, of untrusted text."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text


def plain_table() -> Table:
    """A table without lines and head, two spaces between columns."""
    return Table(box=None, show_header=False, padding=(0, 2, 0, 0))


def add_row(table: Table, cells: Iterable[str], style: str = "") -> None:
    """Add a row to a table.

    A cell that does not fit is folded, and brackets in it are no markup.
    """
    table.add_row(*(Text(cell, overflow="fold") for cell in cells), style=style)
