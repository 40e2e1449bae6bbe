"""Tables and texts as HTML, for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable


def escaped(text: str) -> str:
    """Escape a text; in a notebook a pair of dollar signs would be a formula."""
    return html.escape(text).replace("$", "&#36;")


def html_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Render a table; all of its texts are escaped."""
    of_head = "".join(f"<th>{escaped(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escaped(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{of_head}</tr></thead><tbody>{body}</tbody></table>"
