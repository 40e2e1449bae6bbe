"""Markdown from untrusted text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def plain(text: str) -> str:
    """Escape text so that it stays in its line and table cell.

    The text may come from a job, a node or an error.
    """
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, align: str = "") -> list[str]:
    """Render the lines of a table.

    Cells of `rows` are escaped, those of the head are not. `align` has a letter for each column, "l" or "r";
    without it the viewer decides.
    """
    marks = [{"l": "---", "r": "---:"}[letter] for letter in align] or ["---"] * len(head)
    lines = [head, marks, *([plain(cell) for cell in row] for row in rows)]
    return ["| " + " | ".join(line) + " |" for line in lines]
