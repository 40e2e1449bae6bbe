"""Curves that are sent in increments, and their state in a client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .status import Cursor, CurvePart

Points = Sequence[tuple[float, float]]

# A point may still change while its bucket fills, and reports of batches come late.
CHANGING_POINTS = 6


def part_of(step: float, points: Points, cursor: tuple[float, int] | None) -> CurvePart | None:
    """Find the points that a client with this cursor lacks.

    The newest points that it has are included, as they may have changed. None if the curve is empty.
    """
    known = cursor[1] if cursor is not None and cursor[0] == step else 0
    start = max(0, min(known, len(points)) - CHANGING_POINTS)
    if not points:
        return None
    return CurvePart(step=step, start=start, points=list(points[start:]))


def parts_of(curves: Mapping[str, tuple[float, Points]], cursor: Cursor) -> dict[str, CurvePart]:
    """Find the missing parts of several curves, by name."""
    parts = {name: part_of(step, points, cursor.get(name)) for name, (step, points) in curves.items()}
    return {name: part for name, part in parts.items() if part is not None}


class ClientCurves:
    """The whole curves in a client. One thread."""

    def __init__(self) -> None:
        self._curves: dict[str, tuple[float, list[tuple[float, float]]]] = {}

    def merge(self, parts: Mapping[str, CurvePart]) -> None:
        """Merge new parts; merging one again changes nothing."""
        for name, part in parts.items():
            _, points = self._curves.get(name, (part.step, []))
            # A part with another step starts at 0.
            self._curves[name] = (part.step, [*points[: part.start], *part.points])

    def cursor(self) -> Cursor:
        return {name: (step, len(points)) for name, (step, points) in self._curves.items()}

    def names(self) -> Iterable[str]:
        return self._curves.keys()

    def points(self, name: str) -> list[tuple[float, float]]:
        """Points of one curve; empty if it does not exist."""
        return list(self._curves[name][1]) if name in self._curves else []

    def whole(self) -> dict[str, CurvePart]:
        """All curves, for a client that has none."""
        return {
            name: CurvePart(step=step, start=0, points=points)
            for name, (step, points) in self._curves.items()
        }
