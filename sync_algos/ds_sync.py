"""Divide and shuffle: small groups average, drawn anew each round."""

from __future__ import annotations

from dataclasses import dataclass

from .base import AVERAGED, Algorithm, ModelOrigin, Peers, Replica
from .contract.grouping import fixed, shuffled
from .shared.group_mean import pull_to_group_mean
from .shared.pull import PullOptions


@dataclass(frozen=True)
class DSSyncOptions(PullOptions):
    """Options of divide and shuffle.

    `group_size` is the number of trainers in a group; if it does not divide the number of all, sizes differ
    by one at most. With `reshuffle = false` the groups stay, and exchange nothing: the control.
    """

    group_size: int = 2
    reshuffle: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_size < 2:
            raise ValueError(f"group_size: {self.group_size!r} given; give an integer of at least 2")


class DSSync(Algorithm):
    """Divide and shuffle of Wang et al., arXiv 2007.03298, made elastic.

    Each round the trainers are divided into disjoint groups, drawn from the job's seed and the round's
    number. With s_j the snapshots of the group G of trainer i and α the elastic rate:

        m_G = mean of s_j over G,    w_i <- (1 - α) w_i + α m_G      (or the form of `PullOptions` "keep").

    No member waits for another group, and the shuffling carries what one group found to all others within
    a few rounds. Everything is float32 [numel]. A round waits until the group has met, then does one
    all-reduce of the whole buffer in it. A trainer that dies during a round, at any moment, ends the round
    of its group: each survivor's replica is as its workers left it, the round does not count, and the next
    one divides those who are left.
    """

    name = "ds_sync"
    summary = "disjoint groups, drawn anew each round, average among themselves; no single model"
    needs_peers = True
    changes_groups = True
    model = ModelOrigin.REPLICAS
    optimizer_states = AVERAGED
    Options = DSSyncOptions
    options: DSSyncOptions

    async def round(self, replica: Replica, peers: Peers) -> bool:
        """All-reduce in the group, then step toward its mean."""
        size = self.options.group_size
        grouping = shuffled(size) if self.options.reshuffle else fixed(size)
        return await pull_to_group_mean(replica, peers, grouping, self.options)
