"""The members of a hub: loops, modules with tables, sync and embedding nodes."""

from __future__ import annotations

from typing import ClassVar

from ...nodes.control.membership import Member, Members
from ...pipeline.errors import ClusterError
from ...pipeline.wire.control.messages import Hello
from ...pipeline.wire.control.orders import MemberInfo

LOOP, SYNC = "trainer", "sync"
# A module with tables, and a node that has them.
CLIENT, EMBEDDING = "client", "embedding"
LOOP_NAME = "loop"
_NAMES = {LOOP: LOOP_NAME, CLIENT: "tables"}
# What several of a role that a hub awaits are called.
COUNTED = {LOOP: "loop", CLIENT: "module"}


def loop_of(token: str) -> str:
    """Return what the tokens of one loop, or one module, have in common.

    Each time that it comes back it has another token: THIS.NUMBER.
    """
    return token.partition(".")[0]


class HubMembers(Members):
    """Loops, modules with tables, sync and embedding nodes by token.

    A loop or a module never gets the index of another, even of a dead one.

    Attributes:
        sync_nodes: number of sync nodes.
    """

    _whole: ClassVar = "hub"
    _unknown_remedy: ClassVar = "attach again"
    _dead_remedy: ClassVar = "attach again"

    def __init__(self, sync_nodes: int) -> None:
        super().__init__(started=True)
        self.sync_nodes = sync_nodes
        # Tokens of loops and modules of a dead hub, which may come back.
        self._away: set[str] = set()
        self._returned: set[str] = set()

    def join(self, hello: Hello) -> Member:
        """Admit who says hello; raises ClusterError."""
        known = self._members.get(hello.token)
        if known is not None and known.alive:
            return known
        if known is not None or hello.role not in (LOOP, SYNC, CLIENT, EMBEDDING):
            what = "was declared dead" if known is not None else f"a hub has no {hello.role!r}"
            raise ClusterError(what, remedy="attach again" if known is not None else "join a coordinator")
        before = self._same(hello) if hello.role in (LOOP, CLIENT) else None
        if before is not None and not before.left:
            return self._return(before, hello)
        # Embedding nodes that could not start are replaced by others.
        known_ones = self.everyone(hello.role)
        index = sum(other.alive for other in known_ones) if hello.role == EMBEDDING else len(known_ones)
        if hello.role == SYNC and index >= self.sync_nodes:
            raise ClusterError(f"the hub already has its {self.sync_nodes} sync nodes")
        name = f"{_NAMES.get(hello.role, hello.role)}-{index}"
        info = MemberInfo(name, hello.role, index, hello.token, hello.endpoint)
        self._members[hello.token] = member = Member(info, begun=False)
        return member

    def _same(self, hello: Hello) -> Member | None:
        """Return the member that one was which comes back with another token."""
        loop = loop_of(hello.token)
        return next(
            (member for member in self.everyone(hello.role) if loop_of(member.info.token) == loop), None
        )

    def _return(self, before: Member, hello: Hello) -> Member:
        """Admit a loop or module that comes back, as what it was."""
        if before.alive and not self.is_away(before.info.token):
            raise ClusterError(
                f"{before.info.name} still takes part", remedy="wait until it is declared dead"
            )
        del self._members[before.info.token]
        self._away.discard(before.info.token)
        self._returned.discard(before.info.token)
        info = MemberInfo(before.info.name, hello.role, before.info.index, hello.token, hello.endpoint)
        self._members[hello.token] = member = Member(info, begun=False, metrics=before.metrics)
        self._returned.add(hello.token)
        return member

    def restore(self, member: Member) -> None:
        """Add a loop or a module of a dead hub."""
        self._members[member.info.token] = member
        if member.alive:
            self._away.add(member.info.token)

    def away(self, role: str | None = LOOP) -> list[Member]:
        """Return who of a dead hub is not back yet; None for both roles."""
        return self._living_of(self._away, role)

    def returned(self, role: str = LOOP) -> list[Member]:
        """Return the living loops, or modules, that have come back."""
        return self._living_of(self._returned, role)

    def _living_of(self, tokens: set[str], role: str | None) -> list[Member]:
        members = [self._members[token] for token in sorted(tokens)]
        return [member for member in members if member.alive and role in (None, member.info.role)]

    def is_away(self, token: str) -> bool:
        """Whether this was the token of one that has not come back."""
        return token in self._away and self._members[token].alive

    def known(self, token: str) -> Member | None:
        """Return the member with this token; None for one that has not come back."""
        return None if self.is_away(token) else self.find(token)
