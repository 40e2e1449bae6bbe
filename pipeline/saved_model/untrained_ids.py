"""Counts of ids that training gave no row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..text.format import percent


class UntrainedIds:
    """Counts by column of scored ids, and of those without a trained row.

    An id counts as often as the data have it. Only growing tables know: ids of a hashed table share its rows.
    Used by one thread.

    Args:
        columns: names of all columns of the model whose ids have rows of a table.
    """

    def __init__(self, columns: Iterable[str]) -> None:
        self._columns = tuple(columns)
        self._counts: dict[str, tuple[int, int]] = {}

    def add(self, counts: Mapping[str, tuple[int, int]]) -> None:
        """Add the counts of a batch, as `SavedModel.ids_without_row` returns them."""
        for name, (ids, untrained) in counts.items():
            before = self._counts.get(name, (0, 0))
            self._counts[name] = (before[0] + ids, before[1] + untrained)

    def as_dict(self) -> dict[str, dict[str, int] | None]:
        """Return `ids` and `untrained` of each column; None for one with a hashed table."""
        counts: dict[str, dict[str, int] | None] = dict.fromkeys(self._columns)
        for name, (ids, untrained) in self._counts.items():
            counts[name] = {"ids": ids, "untrained": untrained}
        return counts


def untrained_lines(counts: Mapping[str, dict[str, int] | None]) -> list[str]:
    """Say how many ids of each table had no trained row.

    The last line names the tables of which it is not known.
    """
    lines = [
        f"{ids['untrained']:,} of {ids['ids']:,} ids of {name} had no trained row"
        + (f" ({percent(ids['untrained'] / ids['ids'], 1)})" if ids["ids"] else "")
        for name, ids in counts.items()
        if ids is not None
    ]
    hashed = [name for name, ids in counts.items() if ids is None]
    if hashed:
        lines.append(f"not known of hashed tables, where ids share rows: {', '.join(hashed)}")
    return lines
