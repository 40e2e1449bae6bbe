"""The bundles that a running job holds, and which go back meanwhile.

Imports no ray.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ...nodes.supervisor.launcher import NodeKey
from .bundles import Bundle

Reserve: TypeAlias = Callable[[Sequence[Sequence[Bundle]], float, str], Awaitable[list[Any]]]
"""Takes lists of bundles, seconds and a remedy; returns a group of each list, or raises ClusterError."""


@dataclass(frozen=True)
class Place:
    """A node's bundle of a placement group.

    Attributes:
        bundle: the node, and what it has there.
        group: the placement group.
        number: the bundle's number in it.
        alone: whether the group has no other bundle.
    """

    bundle: Bundle
    group: Any
    number: int
    alone: bool


class Places:
    """Keep a job's bundles; used on the supervisor's loop only.

    The bundle of a node that died is for its replacement. That of a node that left goes back to the cluster
    if it is alone in its group. Otherwise it waits for another node of the role, since Ray takes back whole
    groups only.

    Args:
        reserve: makes placement groups.
        release: gives one back.
    """

    def __init__(self, reserve: Reserve, release: Callable[[Any], None]) -> None:
        self._reserve = reserve
        self._release = release
        self._places: dict[NodeKey, Place] = {}
        self._free: list[Place] = []
        self._groups: list[Any] = []

    async def add(self, bundles: Sequence[Sequence[Bundle]], timeout_seconds: float, remedy: str) -> None:
        """Reserve a group for each list of bundles.

        Raises ClusterError, with `remedy`, if there is no room for all within `timeout_seconds`.
        """
        groups = await self._reserve(bundles, timeout_seconds, remedy)
        self._groups += groups
        for group, of_group in zip(groups, bundles, strict=True):
            for number, bundle in enumerate(of_group):
                place = Place(bundle, group, number, alone=len(of_group) == 1)
                self._places[bundle.role, bundle.index] = place

    def all(self) -> dict[NodeKey, Place]:
        """Return the bundles that are somebody's."""
        return dict(self._places)

    def of(self, key: NodeKey) -> Place | None:
        """Return a node's bundle, if it has one."""
        return self._places.get(key)

    def reuse(self, key: NodeKey) -> Place | None:
        """Give a node a bundle that another one of its role has left."""
        role, index = key
        left = next((place for place in self._free if place.bundle.role == role), None)
        if left is not None:
            self._free.remove(left)
            self._places[key] = replace(left, bundle=replace(left.bundle, index=index))
        return self._places.get(key)

    def leave(self, key: NodeKey) -> None:
        """Take the bundle of a node that left and gets no replacement."""
        place = self._places.pop(key, None)
        if place is None:
            return
        if place.alone:
            self._groups.remove(place.group)
            self._release(place.group)
        else:
            self._free.append(place)

    def close(self) -> None:
        """Release every group, with the bundles that are in use."""
        groups, self._groups = self._groups, []
        self._places.clear()
        self._free.clear()
        for group in groups:
            self._release(group)
