"""Offsets of other machines' clocks from this one, and their errors."""

from __future__ import annotations

from typing import Any


class NodeClocks:
    """Estimates clock offsets by Cristian's algorithm.

    The reply with the shortest round trip counts; half of that trip is the error. Nodes on this kernel
    read this very clock.

    Args:
        machine: names this kernel.
    """

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._found: dict[str, tuple[float, float]] = {}

    def told(self, node: str, answer: dict[str, Any], asked_at: float, answered_at: float) -> None:
        """Add a reply with `clock` and `machine`; both times are of this process's clock."""
        offset, error = float(answer["clock"]) - (asked_at + answered_at) / 2, (answered_at - asked_at) / 2
        if answer["machine"] == self._machine:
            offset = error = 0.0
        if node not in self._found or error < self._found[node][1]:
            self._found[node] = (offset, error)

    def offset_seconds(self, node: str) -> float:
        """The node's clock minus this one; 0 for an unknown node."""
        return self._found.get(node, (0.0, 0.0))[0]

    @property
    def error_seconds(self) -> float:
        """The largest error of an offset."""
        return max((error for _, error in self._found.values()), default=0.0)
