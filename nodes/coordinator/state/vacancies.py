"""The shards and slices of the center that have no node: data and transitions, without I/O."""

from __future__ import annotations

from collections.abc import Iterable

from ...control.membership import Member, Membership


class Vacancies:
    """The places of a running job that another node may take. Owned by the coordinator's loop.

    Args:
        shards: number of embedding shards.

    Attributes:
        slices: the slice of the center that each sync node holds or held, by token.
    """

    def __init__(self, members: Membership, shards: int) -> None:
        self.slices: dict[str, int] = {}
        self._members = members
        self._shards = shards

    def start(self, syncs: Iterable[Member]) -> None:
        """Give each sync node its slice."""
        self.slices = {sync.info.token: number for number, sync in enumerate(syncs)}

    def empty_shards(self) -> list[int]:
        """Return shards without an active embedding node."""
        held = {member.info.index for member in self._members.alive("embedding")}
        return [number for number in range(self._shards) if number not in held]

    def empty_slices(self) -> list[int]:
        """Return slices without an active sync node."""
        held = {self.slices.get(member.info.token) for member in self._members.alive("sync")}
        return sorted(set(self.slices.values()) - held)

    def free(self, role: str, *, comes_back: bool = False) -> list[int]:
        """Return a role's shards or slices that a node can take; of other roles none.

        A slice that is made anew can be taken if a trainer can rebuild it; a node that `comes_back` has it.
        """
        if role == "sync":
            return self._free_slices(anew=not comes_back)
        return self._free_shards() if role == "embedding" else []

    def take_slice(self, token: str, number: int) -> None:
        """Record which slice a new sync node has."""
        self.slices[token] = number

    def _free_slices(self, *, anew: bool) -> list[int]:
        """Return the free slices; if they are to be made `anew`, those that can be."""
        can = not anew or any(trainer.facts.recenters for trainer in self._members.alive("trainer"))
        reserved = {self.slices.get(member.info.token) for member in self._members.joining("sync")}
        return [number for number in self.empty_slices() if can and number not in reserved]

    def _free_shards(self) -> list[int]:
        """Return the shards that no embedding node holds or is about to hold."""
        reserved = {member.info.index for member in self._members.joining("embedding")}
        return [number for number in self.empty_shards() if number not in reserved]
