"""A round in which the trainers of each group move toward their mean."""

from __future__ import annotations

from ..base import PeerLost, Peers, Replica
from ..contract.grouping import Grouping
from .pull import PullOptions


async def pull_to_group_mean(
    replica: Replica, peers: Peers, grouping: Grouping, options: PullOptions
) -> bool:
    """Meet the group, all-reduce a snapshot, then move the replica toward the mean.

    Returns False, with the replica as it was, if a member was lost.
    """
    try:
        group = await peers.meet(grouping)
        snapshot = replica.snapshot(replica.whole)
        mean = await group.mean(snapshot)
    except PeerLost:
        return False
    options.pull(replica, snapshot, mean)
    return True
