"""Groups of a round: pure functions that every trainer evaluates alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise

Groups = tuple[tuple[int, ...], ...]

Grouping = Callable[[Sequence[int], int, int], Groups]
"""(members ascending, round number, seed) -> groups of members; every member is in exactly one group."""


def everyone(members: Sequence[int], round_number: int, seed: int) -> Groups:  # noqa: ARG001
    """Return one group of all members."""
    return (tuple(members),)


def shuffled(size: int) -> Grouping:
    """Return a grouping into groups of `size`, drawn anew for each round.

    Sizes differ by one at most. With `size` 2 and an odd number of members one is alone.
    """

    def groups(members: Sequence[int], round_number: int, seed: int) -> Groups:
        order = list(members)
        random.Random(f"{seed}/{round_number}").shuffle(order)
        return _cut(order, size)

    return groups


def fixed(size: int) -> Grouping:
    """Return a grouping into groups of `size`, the same in every round."""

    def groups(members: Sequence[int], round_number: int, seed: int) -> Groups:  # noqa: ARG001
        return _cut(list(members), size)

    return groups


def sites(size: int, every: int) -> Grouping:
    """Return a grouping into sites of `size` trainers; every `every`-th round groups all.

    Trainers 0 to `size` - 1 are the first site, and so on. Absent trainers keep their places, so that nobody
    changes sites.
    """

    def groups(members: Sequence[int], round_number: int, seed: int) -> Groups:
        if (round_number + 1) % every == 0:
            return everyone(members, round_number, seed)
        return tuple(tuple(site) for _, site in groupby(members, key=lambda member: member // size))

    return groups


def _cut(order: list[int], size: int) -> Groups:
    if size == 2:
        return tuple(tuple(sorted(order[start : start + 2])) for start in range(0, len(order), 2))
    count = max(1, round(len(order) / size))
    bounds = [len(order) * part // count for part in range(count + 1)]
    return tuple(tuple(sorted(order[a:b])) for a, b in pairwise(bounds) if b > a)
