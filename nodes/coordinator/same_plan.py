"""Whether all nodes of a job have the plan of the tables that the coordinator told them."""

from __future__ import annotations

from collections.abc import Iterable

from ...pipeline.embedding.placement.plan import TablePlan
from ...pipeline.errors import ClusterError
from .membership import Member


def require_same_plan(plan: TablePlan, members: Iterable[Member]) -> None:
    """Raises ClusterError, naming the first node with another plan and what differs. `members` are those that
    have one: trainers and embedding nodes, ready."""
    for member in members:
        facts, info = member.facts, member.info
        digest = str(facts.get("plan_digest", ""))
        what = plan.difference(info.index, facts.get("pieces", ())) if info.role == "embedding" else ""
        if digest != plan.digest or what:
            what = what or f"its plan is {digest[:12] or 'none'}, and the coordinator's {plan.digest[:12]}"
            raise ClusterError(
                f"{info.name} splits the tables differently: {what}",
                remedy="use one version of shadowsync on all nodes",
            )
