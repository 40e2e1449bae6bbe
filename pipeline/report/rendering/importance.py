"""Importance of columns, in a report."""

from __future__ import annotations

from typing import Final

from ...metrics.importance import Importance
from ...text.format import count, number
from ...text.markdown import markdown_table, plain

SHOWN_COLUMNS: Final = 40


def importance_in_words(importance: Importance) -> str:
    """Say of which rows it is, and what was left out."""
    ne = "" if importance.ne is None else f"NE {number(importance.ne)}, "
    text = (
        f"On {count(importance.rows)} rows ({ne}AUC {number(importance.auc)} of {importance.label}): "
        "how much worse the scores are if one column's values are exchanged between rows."
    )
    if importance.left_out:
        text += f" No time was left for {', '.join(importance.left_out)}."
    return text


def importance_section(importance: Importance | None) -> list[list[str]]:
    """Return the section of report.md; none without `importance`."""
    if importance is None:
        return []
    rows = [
        (plain(column.name), number(column.ne_increase, 5), number(column.auc_decrease, 5))
        for column in importance.columns[:SHOWN_COLUMNS]
    ]
    table = markdown_table(("column", "NE rises by", "AUC falls by"), rows)
    return [["## Importance of columns", "", plain(importance_in_words(importance)), "", *table]]
