"""Sets of span numbers on the wire: as runs, since they mostly follow each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def to_runs(numbers: Iterable[int]) -> list[list[int]]:
    """The numbers as ascending runs `[start, stop]`, each without its stop."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number:
            runs[-1][1] = number + 1
        else:
            runs.append([number, number + 1])
    return runs


def from_runs(runs: Iterable[Sequence[int]]) -> frozenset[int]:
    """The numbers that `to_runs` was given."""
    return frozenset(number for start, stop in runs for number in range(start, stop))
