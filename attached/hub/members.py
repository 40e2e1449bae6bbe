"""The members of a hub: loops, modules with tables, sync and embedding nodes."""

from __future__ import annotations

from ...nodes.control.membership import Member
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


class HubMembers:
    """Loops, modules with tables, sync and embedding nodes by token.

    A loop or a module never gets the index of another, even of a dead one.

    Attributes:
        sync_nodes: number of sync nodes.
    """

    def __init__(self, sync_nodes: int) -> None:
        self.sync_nodes = sync_nodes
        self._members: dict[str, Member] = {}
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
        index = sum(one.alive for one in known_ones) if hello.role == EMBEDDING else len(known_ones)
        if hello.role == SYNC and index >= self.sync_nodes:
            raise ClusterError(f"the hub already has its {self.sync_nodes} sync nodes")
        name = f"{_NAMES.get(hello.role, hello.role)}-{index}"
        info = MemberInfo(name, hello.role, index, hello.token, hello.endpoint)
        self._members[hello.token] = member = Member(info, begun=False)
        return member

    def _same(self, hello: Hello) -> Member | None:
        """Return the member that one was which comes back with another token."""
        loop = loop_of(hello.token)
        return next((one for one in self.everyone(hello.role) if loop_of(one.info.token) == loop), None)

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
        found = [self._members[token] for token in sorted(tokens)]
        return [one for one in found if one.alive and role in (None, one.info.role)]

    def is_away(self, token: str) -> bool:
        """Whether this was the token of one that has not come back."""
        return token in self._away and self._members[token].alive

    def find(self, token: str) -> Member | None:
        """Return the member with this token, dead or alive."""
        return self._members.get(token)

    def require(self, token: str) -> Member:
        """Return the living member with this token; raises ClusterError."""
        member = self._members.get(token)
        if member is None or not member.alive or self.is_away(token):
            why = (
                f"{member.info.name} was declared dead ({member.lost_because})"
                if member is not None and not member.alive
                else "not a member of this hub"
            )
            raise ClusterError(why, remedy="attach again")
        return member

    def alive(self, role: str | None = None) -> list[Member]:
        """Return active living members, by role and index."""
        return [member for member in self.everyone(role) if member.alive and member.begun]

    def living(self) -> list[Member]:
        """Return living members, active or not yet."""
        return [one for one in self.everyone() if one.alive and not self.is_away(one.info.token)]

    def everyone(self, role: str | None = None) -> list[Member]:
        """Return all members ever, of one role or of all."""
        found = [member for member in self._members.values() if role in (None, member.info.role)]
        return sorted(found, key=lambda member: (member.info.role, member.info.index))
