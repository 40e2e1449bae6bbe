"""Membership of a job: a state machine without I/O.

Events in (hello, ready, lost), members out.

`require_same_plan` and `require_same_start` check that all nodes have the same plan of the tables, and start
from the same checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from ...pipeline.embedding.placement.plan import TablePlan
from ...pipeline.errors import ClusterError
from ...pipeline.wire.control.messages import NodeFacts
from ...pipeline.wire.control.orders import MemberInfo, NodeLost
from ...pipeline.wire.field_checks import Counts

LEFT: Final = "left the job"
SILENT: Final = "was silent for"


@dataclass
class Member:
    """One node as the coordinator knows it.

    Attributes:
        begun: whether it takes part. A node that joins the running job does so after its introduction.
        held: whether it was ready when the job started, and had to wait while another one began.
        left: whether it left as told while the job continued.
        leaves: whether it was told to leave the running job.
        withdrawn: whether it died before the job started.
        former: its token before it was declared dead; empty if it is new.
        joined_at: time of its hello to the running job, by the clock of the coordinator's loop.
    """

    info: MemberInfo
    ready: bool = False
    alive: bool = True
    begun: bool = True
    held: bool = False
    left: bool = False
    leaves: bool = False
    withdrawn: bool = False
    former: str = ""
    joined_at: float = 0.0
    facts: NodeFacts = field(default_factory=NodeFacts)
    metrics: Counts = field(default_factory=dict)
    lost_because: str = ""

    @property
    def notice(self) -> NodeLost:
        """The order that tells another node that this one died or left."""
        return NodeLost(self.info.token, self.info.role, self.info.name, self.left)

    @property
    def was_silent(self) -> bool:
        """Whether it was declared dead for its silence alone."""
        silent = self.lost_because.startswith(SILENT)
        return self.begun and not self.alive and not self.left and silent

    def get_ready(self, facts: NodeFacts) -> None:
        """Record the facts of its role; it can then be connected to the others."""
        self.ready, self.facts = True, facts

    def count(self, key: str) -> int | None:
        """Return a count of its last heartbeat, or None without one."""
        value = self.metrics.get(key)
        return None if value is None else int(value)

    def die(self, why: str) -> None:
        """Record that it left or died."""
        self.alive, self.lost_because = False, why

    def prepare_to_leave(self) -> None:
        """Record that it was told to leave."""
        self.leaves = True

    def leave(self) -> None:
        """Record that it leaves well."""
        self.alive, self.left, self.lost_because = False, True, LEFT

    def say_hello(self, now: float) -> None:
        """Record when it said hello."""
        self.joined_at = now

    def hold(self) -> None:
        """Record that it has to wait: another one begins."""
        self.begun, self.held = False, True

    def begin(self) -> None:
        """Record that it was introduced to the others, and takes part."""
        self.begun = True

    def withdraw(self) -> None:
        """Record its death before the job started; another node takes its place."""
        self.begun, self.withdrawn = False, True

    def record_heartbeat(self, metrics: Counts) -> None:
        self.metrics = metrics


class Members:
    """The members of a job or of a hub by token.

    Attributes:
        started: whether whoever joins takes part only once it was introduced to the others.
    """

    _whole: ClassVar = "job"
    _unknown_remedy: ClassVar = "join the job first"
    _dead_remedy: ClassVar = "start a new one"

    def __init__(self, *, started: bool) -> None:
        self._members: dict[str, Member] = {}
        self.started = started

    def find(self, token: str) -> Member | None:
        """Return the member with this token, dead or alive."""
        return self._members.get(token)

    def known(self, token: str) -> Member | None:
        """Return the member with this token; None for one that has to join first."""
        return self.find(token)

    def require(self, token: str) -> Member:
        """Return the living member with this token.

        Raises ClusterError for an unknown or dead one.
        """
        member = self.known(token)
        if member is None:
            raise ClusterError(f"not a member of this {self._whole}", remedy=self._unknown_remedy)
        if not member.alive:
            raise ClusterError(
                f"{member.info.name} was declared dead ({member.lost_because})", remedy=self._dead_remedy
            )
        return member

    def alive(self, role: str | None = None) -> list[Member]:
        """Return active living members, by role and index."""
        return [member for member in self.everyone(role) if member.alive and member.begun]

    def living(self) -> list[Member]:
        """Return living members, active or not yet."""
        return [member for member in self.everyone() if member.alive and self.known(member.info.token)]

    def everyone(self, role: str | None = None) -> list[Member]:
        """Return all members ever, of one role or of all, without the withdrawn ones."""
        members = [
            member
            for member in self._members.values()
            if role in (None, member.info.role) and not member.withdrawn
        ]
        return sorted(members, key=lambda member: (member.info.role, member.info.index))


class Membership(Members):
    """The members of a job, and its free slots.

    Args:
        expected: number of nodes of each role in the job.
        digest: the job's digest; nodes with another are refused.
    """

    def __init__(self, expected: Mapping[str, int], digest: str) -> None:
        super().__init__(started=False)
        self._expected = dict(expected)
        self._digest = digest

    def join(
        self,
        role: str,
        token: str,
        digest: str,
        endpoint: str,
        *,
        late: bool = False,
        place: int | None = None,
        former: str = "",
    ) -> Member:
        """Admit a node that says hello.

        With `late` a node may join the running job, under a name that no other node had. Its index is
        `place`, the index of a dead node; by default the index in its name.

        Raises ClusterError if it cannot be in this job.
        """
        if token in self._members:
            member = self._members[token]
            if not member.alive:
                raise ClusterError(f"{member.info.name} was declared dead", remedy="start a new one")
            return member
        self.require_job(role, digest)
        number = self._late_number(role, late) if self.started else self._free_index(role)
        index = number if place is None else place
        info = MemberInfo(f"{role}-{number}", role, index, token, endpoint)
        self._members[token] = member = Member(info, begun=not self.started, former=former)
        return member

    def place_of(self, role: str, former: str, free: Sequence[int], held: int | None = None) -> list[int]:
        """Return the shard or slice that a node comes back to.

        It was declared dead, when its token was `former`. `free` are those without a node, and `held` was its
        slice. Raises ClusterError if it may not come back.
        """
        before = self._members.get(former)
        if before is None or before.info.role != role or not before.was_silent:
            raise ClusterError("only a node that was silent may come back", remedy="start a new one")
        if role not in ("embedding", "sync"):
            return []
        place = before.info.index if role == "embedding" else held
        if place is None or place not in free:
            others = [member for member in self.everyone(role) if member is not before]
            last = (
                [member for member in others if member.info.index == place] if role == "embedding" else others
            )
            taken = last[-1].info.name if last else "another node"
            raise ClusterError(f"{taken} has taken the place of {before.info.name}")
        return [place]

    def require_job(self, role: str, digest: str) -> None:
        """Raise ClusterError unless a node of this role is of this job."""
        if role not in self._expected:
            raise ClusterError(f"this job has no role {role!r}")
        if digest != self._digest:
            raise ClusterError(
                "the node's job differs from the coordinator's",
                remedy="start every node with the same job file and the same --set options",
            )

    def _late_number(self, role: str, late: bool) -> int:
        if not late:
            raise ClusterError(
                f"the job is running and cannot take another {role} node now",
                remedy='"Joining a running job" in docs/guarantees.md says when one can',
            )
        # Each node that was there from the beginning has one.
        return len(self.everyone(role))

    def has_free_index(self, role: str) -> bool:
        """Return whether the job, which has not started, lacks a node of this role."""
        return bool(self._free_indices(role))

    def _free_indices(self, role: str) -> list[int]:
        taken = {member.info.index for member in self.alive(role)}
        return [index for index in range(self._expected[role]) if index not in taken]

    def _free_index(self, role: str) -> int:
        free = self._free_indices(role)
        if not free:
            raise ClusterError(
                f"the job already has its {self._expected[role]} {role} nodes",
                remedy=f"start fewer, or raise the number of {role} nodes in the job file",
            )
        return free[0]

    def start(self) -> None:
        """Start the job: from here on a node joins only late."""
        self.started = True

    def lose(self, token: str, why: str) -> Member | None:
        """Record that a node left or died; return None if that was known."""
        member = self._members.get(token)
        if member is None or not member.alive:
            return None
        member.die(why)
        if not self.started:
            member.withdraw()
        return member

    def joining(self, role: str | None = None) -> list[Member]:
        """Return living members that are not active yet."""
        return [member for member in self.everyone(role) if member.alive and not member.begun]

    def preparing(self, role: str | None = None) -> list[Member]:
        """Return living members that are not ready yet."""
        return [member for member in self.everyone(role) if member.alive and not member.ready]

    def gone(self) -> list[Member]:
        """Return the members that took part, and are dead or have left."""
        return [member for member in self.everyone() if member.begun and not member.alive]

    def lost(self) -> list[Member]:
        """Return members that are not there any more, of the beginning or that took part later."""
        return [member for member in self.everyone() if (member.begun or member.held) and not member.alive]

    def newest_token(self, token: str) -> str:
        """Return the token that a node has since it last came back."""
        heirs = {member.former: heir for heir, member in self._members.items() if member.former}
        while token in heirs:
            token = heirs[token]
        return token

    def dead_tokens(self) -> list[str]:
        """Return the first tokens of nodes declared dead that have not come back."""
        first = [token for token, member in self._members.items() if not member.former]
        newest = {token: self._members[self.newest_token(token)] for token in first}
        return [token for token, member in newest.items() if not member.alive and not member.left]

    def missing(self) -> dict[str, int]:
        """Return how many nodes of each role are not ready."""
        counts = {
            role: count - sum(member.ready for member in self.alive(role))
            for role, count in self._expected.items()
        }
        return {role: count for role, count in counts.items() if count > 0}

    def missing_places(self) -> dict[str, Member | None]:
        """Return the places without a ready node, with the last holder of each."""
        last = {member.info.name: member for member in self._members.values()}
        names = [f"{role}-{index}" for role, count in self._expected.items() for index in range(count)]
        holders = {name: last.get(name) for name in names}
        return {
            name: holder
            for name, holder in holders.items()
            if holder is None or not (holder.alive and holder.ready)
        }


def require_same_plan(plan: TablePlan, members: Iterable[Member]) -> None:
    """Check that all members have this plan of the tables.

    `members` are the ready trainers and embedding nodes, which have a plan. Raises a ClusterError that names
    the first node whose plan differs, and how.
    """
    for member in members:
        facts, info = member.facts, member.info
        digest = facts.plan_digest
        what = plan.difference(info.index, facts.pieces) if info.role == "embedding" else ""
        if digest != plan.digest or what:
            what = what or f"its plan is {digest[:12] or 'none'}, and the coordinator's {plan.digest[:12]}"
            raise ClusterError(
                f"{info.name} splits the tables differently: {what}",
                remedy="use one version of shadowsync on all nodes",
            )


def require_same_start(digests: Iterable[str], checkpoint: str) -> None:
    """Check that all nodes read the same checkpoint.

    A run that still trains may replace its checkpoint after one node has read it and before another does.
    `digests` are each node's `CheckpointManifest.digest`, or "" for a node that read none. Raises
    ClusterError if they differ.
    """
    if len({digest for digest in digests if digest}) > 1:
        raise ClusterError(
            "the nodes read different checkpoints",
            where=checkpoint,
            remedy="wait for the run that writes them to end, or give a copy of its folder",
        )
